// The conversation: its state, what is asked of the server, and what the page shows of it.
import {$, el, focus_input, keep, kept, number} from './dom.js';
import {AnswerView, UserView, error_node} from './messages.js';
import {read_settings, request_settings, show_defaults, write_settings} from './settings.js';
import {show_side} from './side.js';
import {ServerError, checked, stream_chat, with_key} from './stream.js';

const state = {
  model: '',
  about: '',
  ctx_tokens: 0,
  system: '',
  messages: [],   // {role, content}; of the assistant also reasoning, usage, seconds, thought, finish, error, running
  running: null,  // AbortController of the answer under way
};
let views = [];      // one a message
let follows = true;  // the text is followed only while the reader is at its end

const buttons = {resend, regenerate, retry};

function save_chat() {
  keep(sessionStorage, 'k3.chat', {system: state.system, messages: state.messages});
}

// ---- What is shown

const view_of = (message) => new (message.role === 'user' ? UserView : AnswerView)(message, buttons);

// Builds the conversation anew; needed only when what came before changes.
function show_messages() {
  views = state.messages.map(view_of);
  $('messages').replaceChildren(...views.map((view) => view.root));
  if (views.length === 0) {
    $('messages').append(el('div', {class: 'welcome'}, el('h2', {}, 'What is on your mind?'), el('p', {}, state.about)));
  }
  show_ends();
}

// What depends on a message being the last one.
function show_ends() {
  const last_user = state.messages.findLastIndex((message) => message.role === 'user');
  views.forEach((view, i) => {
    if (!view.message.running) view.show(!state.running && (i === last_user || i === views.length - 1));
  });
  const usage = state.messages.findLast((message) => message.usage)?.usage;
  const known = usage && state.ctx_tokens > 0;
  $('context').textContent = known ? `${number(usage.total_tokens)} of ${number(state.ctx_tokens)} tokens of context` : '';
}

function add_message(message) {
  if (views.length === 0) $('messages').replaceChildren();
  state.messages.push(message);
  views.push(view_of(message));
  $('messages').append(views.at(-1).root);
  return views.at(-1);
}

function show_running() {
  const running = state.running !== null;
  const last = state.messages.at(-1);
  $('send').hidden = running;
  $('stop').hidden = !running;
  if (running) $('status').textContent = 'Answering';
  else if (last && !last.error) $('status').textContent = last.finish === 'stopped' ? 'Stopped' : 'The answer is complete';
  show_ends();
}

function at_end() {
  const log = $('log');
  return log.scrollHeight - log.scrollTop - log.clientHeight < 32;
}

function scroll_to_end() {
  follows = true;
  $('log').scrollTop = $('log').scrollHeight;
  $('jump').hidden = true;
}

function after_growth() {
  if (follows) $('log').scrollTop = $('log').scrollHeight;
  $('jump').hidden = follows || at_end();
}

// ---- An answer

function wire_messages() {
  const out = state.system ? [{role: 'system', content: state.system}] : [];
  for (const {role, content, reasoning, running, error} of state.messages) {
    if (running || (error && !content)) continue;
    out.push(role === 'assistant' && reasoning ? {role, content, reasoning_content: reasoning} : {role, content});
  }
  return out;
}

function take_frame(message, frame, seconds) {
  const choice = frame.choices?.[0];
  message.usage = choice?.usage ?? frame.usage ?? message.usage;
  if (!choice) return;
  if (choice.finish_reason) message.finish = choice.finish_reason;
  const {content, reasoning_content: reasoning} = choice.delta ?? {};
  if (!content && !reasoning) return;
  message.seconds = {first: message.seconds?.first ?? seconds, last: seconds};
  if (reasoning) message.reasoning += reasoning;
  if (content && message.reasoning && !message.content) message.thought = seconds - message.seconds.first;
  if (content) message.content += content;
}

const LOST = 'The connection was lost before the answer was complete.';

function told(error, begun = false) {
  if (error instanceof TypeError) return {status: 0, message: begun ? LOST : 'The server does not answer.'};
  return {status: error.status ?? 0, retry_after: error.retry_after ?? null, message: error.message};
}

// Streams into the message; ends with finish or error set.
async function fill(message, view) {
  const started = performance.now();
  let asked = 0;  // one redraw a frame of the screen, however many frames of the stream come
  const redraw = () => {
    asked = 0;
    view.update();
    after_growth();
  };
  try {
    if (!state.model) await load_model();
    const body = {model: state.model, messages: wire_messages(), stream: true,
                  stream_options: {include_usage: true, continuous_usage_stats: true}, ...request_settings()};
    const done = await stream_chat(body, state.running.signal, (frame) => {
      take_frame(message, frame, (performance.now() - started) / 1000);
      asked ||= requestAnimationFrame(redraw);
    });
    if (!done && !message.finish) throw new ServerError(0, LOST);
  } catch (error) {
    if (error.name === 'AbortError') message.finish = 'stopped';
    else message.error = told(error, message.seconds !== undefined);
  }
  cancelAnimationFrame(asked);
}

// Generates an answer to the messages so far.
async function answer() {
  const message = {role: 'assistant', content: '', reasoning: '', running: true};
  state.running = new AbortController();
  const view = add_message(message);
  show_running();
  scroll_to_end();
  await fill(message, view);
  message.running = false;
  state.running = null;
  save_chat();
  show_running();
  after_growth();
}

function settings_valid() {
  if ($('sampling').checkValidity()) return true;
  show_side('settings', true);
  $('sampling').reportValidity();
  return false;
}

// false: not sent.
export function send(text) {
  if (state.running || text.trim() === '' || !settings_valid()) return false;
  add_message({role: 'user', content: text});
  save_chat();
  answer();
  return true;
}

export function stop() {
  state.running?.abort();
}

function resend(message, text) {
  if (state.running || !settings_valid()) return;
  state.messages.length = state.messages.indexOf(message);
  show_messages();
  send(text);
}

function regenerate() {
  if (state.running || !settings_valid()) return;
  if (state.messages.at(-1)?.role === 'assistant') state.messages.pop();
  show_messages();
  answer();
}

// ---- The server

async function load_model() {
  const get = async (path) => (await checked(await fetch(path, {headers: with_key()}))).json();
  const [models, props] = await Promise.all([get('v1/models'), get('props')]);
  const {id, max_model_len, meta} = models.data[0];
  state.model = id;
  state.ctx_tokens = max_model_len ?? 0;
  state.about = `${id}: ${number((meta?.n_params ?? 0) / 1e6)} M parameters, ${number(state.ctx_tokens)} tokens of context`;
  $('model').textContent = id;
  document.title = `k3: ${id}`;
  show_defaults(props.default_generation_settings.params);
}

async function connect() {
  try {
    await load_model();
    if (state.messages.length === 0) show_messages();
    else show_ends();
  } catch (error) {
    if (state.messages.length === 0) $('messages').replaceChildren(error_node(told(error), buttons));
  }
}

function store_key(key) {
  keep(sessionStorage, 'k3.key', key.trim() || null);
  $('key').value = key.trim();
}

function retry(key) {
  if (key !== null) store_key(key);
  if (state.messages.at(-1)?.role === 'assistant') regenerate();
  else connect();
}

// ---- Whole conversations

function replace_chat(system, messages) {
  stop();
  Object.assign(state, {system, messages});
  $('system').value = system;
  save_chat();
  show_messages();
  scroll_to_end();
}

function export_chat() {
  const messages = state.messages.filter((message) => !message.running).map(({role, content, reasoning, usage}) => (
    {role, content, ...(reasoning && {reasoning_content: reasoning}), ...(usage && {usage})}));
  const chat = {format: 'k3-chat', version: 1, model: state.model, system: state.system, settings: read_settings(), messages};
  const blob = new Blob([JSON.stringify(chat, null, 2)], {type: 'application/json'});
  const link = el('a', {href: URL.createObjectURL(blob), download: 'k3-chat.json'});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function imported_message(entry, name) {
  const parts = Array.isArray(entry?.content) ? entry.content.map((part) => part?.text ?? '').join('') : entry?.content ?? '';
  if (typeof parts !== 'string') throw new Error(`${name} has no text`);
  if (entry?.role === 'user' || entry?.role === 'system') return {role: entry.role, content: parts};
  if (entry?.role !== 'assistant') throw new Error(`${name} has the role '${entry?.role}'`);
  const usage = Number.isFinite(entry.usage?.total_tokens) ? {usage: entry.usage} : {};
  return {role: 'assistant', content: parts, reasoning: String(entry.reasoning_content ?? ''), finish: 'stop', ...usage};
}

// Takes our own export, or any {messages: [...]} or [...] of roles and texts.
function import_chat(text) {
  const given = JSON.parse(text);
  const list = Array.isArray(given) ? given : given?.messages;
  if (!Array.isArray(list)) throw new Error('there are no messages in it');
  const messages = list.map((entry, i) => imported_message(entry, `message ${i + 1}`));
  const system = messages.findLast((message) => message.role === 'system')?.content ?? given.system;
  replace_chat(typeof system === 'string' ? system : '', messages.filter((message) => message.role !== 'system'));
  if (given.settings && typeof given.settings === 'object') write_settings(given.settings);
}

async function import_file() {
  const [file] = $('file').files;
  const text = file ? await file.text() : null;
  $('file').value = '';  // so that the same file can be chosen again
  $('import-error').hidden = true;
  try {
    if (text !== null) import_chat(text);
  } catch (error) {
    $('import-error').hidden = false;
    $('import-error').textContent = `This file is no chat: ${error.message}`;
  }
}

export function start_chat() {
  const chat = kept(sessionStorage, 'k3.chat', {});
  const messages = (chat.messages ?? []).filter((message) => !message.running);
  $('key').value = kept(sessionStorage, 'k3.key', '');
  $('log').addEventListener('scroll', () => {
    follows = at_end();
    if (follows) $('jump').hidden = true;
  }, {passive: true});
  $('jump').addEventListener('click', scroll_to_end);
  $('new').addEventListener('click', () => {
    replace_chat(state.system, []);
    focus_input();
  });
  $('system').addEventListener('input', () => {
    state.system = $('system').value;
    save_chat();
  });
  $('key-form').addEventListener('submit', (event) => {
    event.preventDefault();
    store_key($('key').value);
    connect();
  });
  $('export').addEventListener('click', export_chat);
  $('import').addEventListener('click', () => $('file').click());
  $('file').addEventListener('change', import_file);
  replace_chat(chat.system ?? '', messages);
  connect();
}
