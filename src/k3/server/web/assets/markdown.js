// A little Markdown as DOM nodes: paragraphs, headings, lists, rules, fenced code; bold, italics, code in the line.
import {copy_button, el} from './dom.js';

const FENCE = /^\s*(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}#{1,6}\s+(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// The blocks of text from an offset on: {kind, start, lines, ...}.
export function markdown_blocks(text, from) {
  const blocks = [];
  let block = null;  // the one that lines may still join
  let at = from;
  while (at < text.length) {
    const found = text.indexOf('\n', at);
    const end = found < 0 ? text.length : found;
    const line = text.slice(at, end);
    const start = at;
    at = end + 1;
    const open = (kind, more) => {
      block = {kind, start, lines: [], ...more};
      blocks.push(block);
    };
    if (block?.kind === 'code') {
      const closer = FENCE.exec(line);
      if (closer && closer[1].startsWith(block.fence) && closer[2] === '') block = null;
      else block.lines.push(line.slice(Math.min(block.indent, line.length - line.trimStart().length)));
      continue;
    }
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (fence) {
      open('code', {fence: fence[1], language: fence[2].trim(), indent: line.length - line.trimStart().length});
    } else if (line.trim() === '') {
      if (block?.kind === 'list') block.gap = true;
      else block = null;
    } else if (heading) {
      open('heading');
      block.lines.push(heading[1].replace(/\s#+\s*$/, ''));
      block = null;
    } else if (RULE.test(line)) {
      open('rule');
      block = null;
    } else if (ITEM.test(line)) {
      if (block?.kind !== 'list') open('list');
      block.lines.push(line);
      block.gap = false;
    } else {
      const joins = block !== null && !(block.kind === 'list' && block.gap && !/^\s{2,}/.test(line));
      if (!joins) open('paragraph');
      block.lines.push(line);
      block.gap = false;
    }
  }
  return blocks;
}

const MARK = /\*{1,2}|`+/y;

// Linear: a mark without a closing one is looked for once.
function inline_nodes(text, parent) {
  const absent = new Set();
  let plain = '';
  const flush = () => {
    if (plain) parent.append(plain);
    plain = '';
  };
  for (let at = 0; at < text.length;) {
    MARK.lastIndex = at;
    const mark = MARK.exec(text)?.[0] ?? null;
    if (mark === null) {
      plain += text[at++];
      continue;
    }
    const end = absent.has(mark) ? -1 : text.indexOf(mark, at + mark.length);
    if (end < 0) absent.add(mark);
    const inner = end < 0 ? '' : text.slice(at + mark.length, end);
    const code = mark[0] === '`';
    if (inner.trim() === '' || (!code && (/^\s|\s$/.test(inner)))) {
      plain += mark;
      at += mark.length;
      continue;
    }
    flush();
    const node = el(code ? 'code' : mark === '**' ? 'strong' : 'em');
    if (code) node.append(inner.replace(/^ (.*) $/, '$1'));
    else inline_nodes(inner, node);
    parent.append(node);
    at = end + mark.length;
  }
  flush();
}

function list_node(lines) {
  const top = el('div');
  const levels = [];  // {indent, list}, the outermost first
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (!found) {
      items.at(-1).text += '\n' + line.trim();
      continue;
    }
    const indent = found[1].length;
    const tag = /\d/.test(found[2]) ? 'ol' : 'ul';
    while (levels.length > 0 && indent < levels.at(-1).indent) levels.pop();
    if (levels.length > 0 && indent - levels.at(-1).indent < 2 && levels.at(-1).list.localName !== tag) levels.pop();
    if (levels.length === 0 || indent - levels.at(-1).indent >= 2) {
      const list = el(tag, {start: tag === 'ol' ? String(parseInt(found[2], 10)) : null});
      (levels.at(-1)?.list.lastElementChild ?? top).append(list);
      levels.push({indent, list});
    }
    const node = el('li');
    levels.at(-1).list.append(node);
    items.push({node, text: found[3]});
  }
  for (const {node, text} of items) {
    const words = document.createDocumentFragment();
    inline_nodes(text, words);
    node.prepend(words);  // before the lists inside it
  }
  return top.childNodes.length === 1 ? top.firstChild : top;
}

function block_node(block) {
  const text = block.lines.join('\n');
  if (block.kind === 'code') {
    const code = el('code', {}, text);
    const head = el('div', {}, el('span', {class: 'muted'}, block.language || 'text'), copy_button(() => code.textContent));
    return el('div', {class: 'code'}, head, el('pre', {tabindex: '0'}, code));
  }
  if (block.kind === 'rule') return el('hr');
  if (block.kind === 'list') return list_node(block.lines);
  const node = el(block.kind === 'heading' ? 'h3' : 'p');
  inline_nodes(text, node);
  return node;
}

// Shows text that grows: only its last two blocks are made again, since those before them cannot change any more.
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.tail_start = 0;
    this.tail = [];
  }

  update(text) {
    const blocks = markdown_blocks(text, this.tail_start);
    const nodes = blocks.map(block_node);
    for (const node of this.tail) node.remove();
    this.root.append(...nodes);
    this.tail = nodes.slice(-2);
    if (blocks.length > 2) this.tail_start = blocks.at(-2).start;
  }
}
