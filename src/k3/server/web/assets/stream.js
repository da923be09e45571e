// Requests to the server, and the stream of an answer.
import {kept} from './dom.js';

// Server-sent events from pieces of text that are cut anywhere; on_data gets the data of each event.
export class SseParser {
  constructor(on_data) {
    this.on_data = on_data;
    this.rest = '';
    this.data = [];
  }

  push(text) {
    this.rest += text;
    let at = 0;
    for (;;) {
      let end = at;
      while (end < this.rest.length && this.rest[end] !== '\n' && this.rest[end] !== '\r') ++end;
      if (end === this.rest.length) break;
      const cr = this.rest[end] === '\r';
      if (cr && end + 1 === this.rest.length) break;  // a line feed may follow
      this.line(this.rest.slice(at, end));
      at = end + (cr && this.rest[end + 1] === '\n' ? 2 : 1);
    }
    this.rest = this.rest.slice(at);
  }

  line(line) {
    if (line === '') {
      if (this.data.length > 0) this.on_data(this.data.join('\n'));
      this.data = [];
    } else if (line.startsWith('data:')) {
      this.data.push(line.slice(line[5] === ' ' ? 6 : 5));
    }
  }
}

export class ServerError extends Error {
  constructor(status, message, retry_after) {
    super(message);
    Object.assign(this, {status, retry_after});
  }
}

export function with_key(headers = {}) {
  const key = kept(sessionStorage, 'k3.key', '');
  return key ? {...headers, Authorization: 'Bearer ' + key} : headers;
}

export async function checked(response) {
  if (response.ok) return response;
  let message = response.statusText || 'error ' + response.status;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* a body of something else, such as a proxy */ }
  throw new ServerError(response.status, String(message), response.headers.get('Retry-After'));
}

// Calls on_frame with each frame; true when the server said that it is done.
export async function stream_chat(body, signal, on_frame) {
  const response = await checked(await fetch('v1/chat/completions', {
    method: 'POST', headers: with_key({'Content-Type': 'application/json'}), body: JSON.stringify(body), signal,
  }));
  let done = false;
  const parser = new SseParser((data) => {
    if (data === '[DONE]') done = true;
    else on_frame(JSON.parse(data));
  });
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  for (;;) {
    const piece = await reader.read();
    if (piece.done) break;
    parser.push(decoder.decode(piece.value, {stream: true}));
  }
  return done;  // an event without its blank line was cut off: nothing
}
