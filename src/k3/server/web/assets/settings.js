// The sampling controls: read, kept, put into requests.
import {$, keep, kept, number} from './dom.js';

const FIELDS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed', 'thinking', 'effort', 'stop'];

export function read_settings() {
  const out = {};
  for (const name of FIELDS) {
    const value = $('sampling').elements[name].value;
    if (value !== '') out[name] = value;
  }
  return out;
}

export function write_settings(values) {
  for (const name of FIELDS) $('sampling').elements[name].value = values[name] ?? '';
  settings_changed();
}

function settings_changed() {
  const fields = $('sampling').elements;
  fields.effort.disabled = fields.thinking.value === 'disabled';
  keep(localStorage, 'k3.settings', read_settings());
}

// The fields of a request; what is empty is left to the server.
export function request_settings() {
  const {thinking, effort, stop: stops, ...numbers} = read_settings();
  const out = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, Number(value)]));
  if (thinking === 'disabled') out.thinking = {type: 'disabled'};
  else if (thinking || effort) out.thinking = {type: 'enabled', ...(effort ? {effort} : {})};
  const lines = (stops ?? '').split('\n').filter((line) => line !== '');
  if (lines.length > 0) out.stop = lines;
  return out;
}

// The server's own values, shown in the empty fields.
export function show_defaults(defaults) {
  for (const name of ['temperature', 'top_p', 'top_k', 'min_p']) {
    $('sampling').elements[name].placeholder = name === 'top_k' && !(defaults[name] > 0) ? 'off' : number(defaults[name], 3);
  }
}

export function start_settings() {
  $('sampling').addEventListener('submit', (event) => event.preventDefault());
  $('sampling').addEventListener('input', settings_changed);
  $('reset').addEventListener('click', () => write_settings({}));
  write_settings(kept(localStorage, 'k3.settings', {}));
}
