// What one message looks like. act: {resend, regenerate, retry}, what the buttons below it do.
import {button, copy_button, el, number} from './dom.js';
import {MarkdownView} from './markdown.js';

// Enter, but not while an input method composes.
export const is_send = (event) => event.key === 'Enter' && !event.shiftKey && !event.isComposing && event.keyCode !== 229;

const FINISH = {
  length: 'Cut off at the limit of tokens.',
  stopped: 'Stopped.',
  content_filter: 'Cut off by a filter.',
  tool_calls: 'The model called a tool; this page has none.',
  server_interrupted: 'The server stopped before the end. Try again when it is back.',
  engine_overloaded: 'The server ran out of time for this request. Try again later.',
  unexpected_state: 'A fault in the server ended this answer. Try again.',
};

function advice(error) {
  const retry = error.retry_after ? `in ${error.retry_after} s` : 'in a moment';
  const too_long = error.status === 400 && /context|longer/i.test(error.message);
  const by_status = {
    0: 'Is k3 serve still running, and can this machine reach it?',
    400: too_long ? 'Start a new chat, or shorten the message.' : 'Check the settings, or reset them.',
    401: 'Enter the API key of this server.',
    404: 'Reload the page: the server may serve another model now.',
    413: 'Shorten the message.',
    429: `The server is full. Try again ${retry}.`,
    503: `The server is loading or stopping. Try again ${retry}.`,
  };
  return by_status[error.status] ?? 'Try again; the log of the server may say more.';
}

function usage_text(message) {
  const parts = [];
  const usage = message.usage;
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${number(usage.prompt_tokens)} (${number(cached)} cached)`);
    parts.push(`generated ${number(usage.completion_tokens)} tokens`);
  }
  const {first, last} = message.seconds ?? {};
  const decoded = (usage?.completion_tokens ?? 0) - 1;
  if (decoded > 0 && last > first) parts.push(`${number(decoded / (last - first), 1)} tokens/s`);
  if (first !== undefined) parts.push(`first after ${number(first, 2)} s`);
  return parts.join(' · ');
}

export class UserView {
  constructor(message, act) {
    Object.assign(this, {message, act});
    this.root = el('article', {class: 'user', 'aria-label': 'You'});
    this.show(false);
  }

  // last: the one that may be edited
  show(last) {
    this.root.classList.remove('editing');
    this.root.replaceChildren(el('div', {class: 'text'}, this.message.content));
    if (last) this.root.append(el('div', {class: 'under'}, button('edit', 'Edit', () => this.edit())));
  }

  edit() {
    const area = el('textarea', {'aria-label': 'Edit the message'});
    area.value = this.message.content;
    const send = () => area.value.trim() && this.act.resend(this.message, area.value);
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        this.show(true);
      } else if (is_send(event)) {
        event.preventDefault();
        send();
      }
    });
    this.root.classList.add('editing');
    this.root.replaceChildren(area, el('div', {class: 'under pair'},
      el('button', {type: 'button', class: 'plain', click: () => this.show(true)}, 'Cancel'),
      el('button', {type: 'button', class: 'plain first', click: send}, 'Send')));
    area.focus();
  }
}

export class AnswerView {
  constructor(message, act) {
    Object.assign(this, {message, act});
    this.reasoning_text = document.createTextNode('');
    this.summary = el('summary', {}, 'Thinking');
    this.reasoning = el('details', {class: 'reasoning'}, this.summary, el('div', {class: 'text'}, this.reasoning_text));
    this.summary.addEventListener('click', () => {
      this.chosen = true;  // from then on it stays as the reader left it
    });
    this.answer = el('div', {class: 'answer'});
    this.markdown = new MarkdownView(this.answer);
    this.waiting = el('div', {class: 'waiting'}, 'Waiting for the first token');
    this.foot = el('div');
    this.root = el('article', {class: 'assistant', 'aria-label': 'Answer'});
    this.root.append(this.reasoning, this.answer, this.waiting, this.foot);
    this.update();
  }

  update() {
    const {content, reasoning, running, thought} = this.message;
    const news = reasoning.slice(this.reasoning_text.length);
    if (news) this.reasoning_text.appendData(news);
    this.reasoning.hidden = !reasoning;
    const thinking = running && !content;
    if (!this.chosen) this.reasoning.open = Boolean(thinking);
    this.summary.textContent = thinking ? 'Thinking…' : thought > 0 ? `Thought for ${number(thought, 1)} s` : 'Reasoning';
    this.markdown.update(content);
    this.waiting.hidden = !running || content !== '' || reasoning !== '';
    this.root.setAttribute('aria-busy', String(Boolean(running)));
    if (running) this.foot.replaceChildren(el('div', {class: 'under usage muted'}, usage_text(this.message)));
  }

  // Below a finished answer; last: the one that may be made again.
  show(last) {
    this.update();
    const {error, finish, content} = this.message;
    this.foot.replaceChildren();
    if (error) this.foot.append(error_node(error, this.act));
    else if (FINISH[finish]) this.foot.append(el('p', {class: 'notice'}, FINISH[finish]));
    const under = el('div', {class: 'under'});
    if (usage_text(this.message)) under.append(el('span', {class: 'usage muted'}, usage_text(this.message)));
    if (content) under.append(copy_button(() => this.message.content));
    if (last && !error) under.append(button('again', 'Again', this.act.regenerate));
    if (under.childNodes.length > 0) this.foot.append(under);
  }
}

// A 401 asks for the key. act.retry(key): the key is null where none was asked for.
export function error_node(error, act) {
  const node = el('div', {class: 'error', role: 'alert'});
  const pair = el('form', {class: 'pair', submit: (event) => {
    event.preventDefault();
    act.retry(node.querySelector('input')?.value ?? null);
  }});
  if (error.status === 401) {
    const name = 'API key';
    pair.append(el('input', {type: 'password', class: 'plain', 'aria-label': name, placeholder: name, autocomplete: 'off'}));
  }
  pair.append(el('button', {class: 'plain first'}, 'Try again'));
  node.append(el('p', {class: 'what'}, error.message), el('p', {}, advice(error)), pair);
  return node;
}
