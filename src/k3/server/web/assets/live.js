// The live panel: /metrics once a second (it needs no key), only while someone can see the panel.
import {$, number, percent} from './dom.js';
import {checked} from './stream.js';

const live = {timer: 0, busy: false, failures: 0, samples: [], last: null};
const MOST_SAMPLES = 60;

// 'name{labels}' -> value
export function parse_metrics(text) {
  const out = new Map();
  for (const line of text.split('\n')) {
    const space = line.lastIndexOf(' ');
    if (line[0] !== '#' && space > 0) out.set(line.slice(0, space), Number(line.slice(space + 1)));
  }
  return out;
}

function set_bar(bar, parts, whole, label) {
  for (const [name, value] of Object.entries(parts)) {
    bar.querySelector('.' + name).style.width = `${whole > 0 ? 100 * value / whole : 0}%`;
  }
  bar.setAttribute('aria-label', label);
}

function show_pools(get) {
  const total = get('k3:pages_total');
  const free = get('k3:pages{use="free"}');
  for (const kind of ['mla', 'kda']) {
    const running = get(`k3:pages{use="running_${kind}"}`);
    const cached = get(`k3:pages{use="cached_${kind}"}`);
    const text = `${number(running)} in use, ${number(cached)} cached`;
    $('pool-' + kind).querySelector('.numbers').textContent = text;
    set_bar($('pool-' + kind).querySelector('.bar'), {running, cached, other: total - free - running - cached}, total,
            `${kind.toUpperCase()} pages: ${text}, ${number(free)} free of ${number(total)}`);
  }
  $('m-pages').textContent = `${number(free)} of ${number(total)} free`;
}

function show_prefix(get) {
  const asked = get('k3:prefix_query_tokens_total');
  const hit = get('k3:prefix_hit_tokens_total');
  const matched = get('k3:prefix_matched_tokens_total');
  const limited = (by) => get(`k3:prefix_limited_total{by="${by}"}`);
  const by = {mla: limited('mla'), kda: limited('kda'), none: limited('nothing_cached')};
  $('m-hit').textContent = asked > 0 ? percent(hit, asked) + ' hit' : 'no lookup yet';
  set_bar($('hit-bar'), {running: hit}, asked, `Hit rate ${percent(hit, asked)}`);
  for (const [kind, count] of Object.entries(by)) $('m-by-' + kind).textContent = number(count);
  const limit = by.kda > by.mla ? 'KDA checkpoints limit most hits.' : by.mla > 0 ? 'MLA blocks limit most hits.' : '';
  const counts = `${number(hit)} of ${number(asked)} prompt tokens skipped; MLA blocks matched ${number(matched)}.`;
  $('m-hit-text').textContent = asked > 0 ? `${counts} ${limit}` : '';
}

function show_rate(get) {
  const now = {time: performance.now() / 1000, tokens: get('k3:generated_tokens_total')};
  const last = live.last;
  live.last = now;
  const goes_on = last && now.tokens >= last.tokens && now.time - last.time < 5;
  if (goes_on) live.samples.push((now.tokens - last.tokens) / (now.time - last.time));
  else live.samples = [];  // a pause, or another server
  if (live.samples.length > MOST_SAMPLES) live.samples.shift();
  const peak = Math.max(...live.samples, 0);
  const x = (i) => (120 * (MOST_SAMPLES - live.samples.length + i) / (MOST_SAMPLES - 1)).toFixed(1);
  const y = (rate) => (34 - 31 * (peak > 0 ? rate / peak : 0)).toFixed(1);
  const points = live.samples.map((rate, i) => `${x(i)} ${y(rate)}`);
  const line = points.join('L');
  $('spark').querySelector('.line').setAttribute('d', line && 'M' + line);
  $('spark').querySelector('.area').setAttribute('d', line && `M${x(0)} 36L${line}L${x(points.length - 1)} 36z`);
  $('m-rate').textContent = number(live.samples.at(-1) ?? 0, 1);
  $('m-peak').textContent = peak > 0 ? 'peak ' + number(peak, 1) : '';
}

function show_metrics(metrics) {
  const get = (name) => metrics.get(name) ?? 0;
  const ended = (how) => get(`k3:requests_total{end="${how}"}`);
  $('m-running').textContent = number(get('k3:sequences_running'));
  $('m-waiting').textContent = number(get('k3:requests_waiting'));
  $('m-preemptions').textContent = number(get('k3:preemptions_total'));
  $('m-done').textContent = number(ended('done'));
  $('m-cancelled').textContent = number(ended('cancelled'));
  $('m-failed').textContent = number(ended('failed') + ended('rejected'));
  show_rate(get);
  show_pools(get);
  show_prefix(get);
}

const live_wanted = () => document.visibilityState === 'visible' && !$('live').hidden;

export async function poll() {
  clearTimeout(live.timer);
  live.timer = 0;
  if (!live_wanted() || live.busy) return;
  live.busy = true;
  try {
    const response = await checked(await fetch('metrics', {cache: 'no-store', signal: AbortSignal.timeout(5000)}));
    show_metrics(parse_metrics(await response.text()));
    live.failures = 0;
    $('live-state').textContent = '';
  } catch {
    ++live.failures;
  }
  live.busy = false;
  const wait = Math.min(30, 2 ** live.failures);  // 1 s, longer after failures
  if (live.failures > 0) $('live-state').textContent = `no answer; again in ${wait} s`;
  if (live_wanted()) live.timer = setTimeout(poll, 1000 * wait);
}
