// Small tools of the page. What a model or a server says enters the page as text nodes only: there is no innerHTML.

export const $ = (id) => document.getElementById(id);

// Not on touch screens, where the keyboard would cover half of the page.
export function focus_input() {
  if (matchMedia('(pointer: fine)').matches) $('input').focus();
}

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function icon(name) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  node.setAttribute('class', 'icon');
  use.setAttribute('href', '#i-' + name);
  node.append(use);
  return node;
}

export function button(name, label, act) {
  return el('button', {type: 'button', class: 'flat', click: act}, icon(name), label);
}

export const number = (value, digits = 0) => value.toLocaleString('en', {maximumFractionDigits: digits});
export const percent = (part, whole) => (whole > 0 ? number(100 * part / whole, 1) + ' %' : '-');

// Storage may be full or forbidden; the page then works without it.
export function keep(storage, name, value) {
  try {
    if (value === null) storage.removeItem(name);
    else storage.setItem(name, JSON.stringify(value));
  } catch { /* not kept */ }
}
export function kept(storage, name, otherwise) {
  try {
    return JSON.parse(storage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

// navigator.clipboard exists on https and localhost only.
async function copy_text(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el('textarea', {class: 'unseen', readonly: ''});
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

// text: a function, for what still grows.
export function copy_button(text) {
  const label = document.createTextNode('Copy');
  return el('button', {type: 'button', class: 'flat', click: () => copy_text(text()).then(
    () => { label.data = 'Copied'; },
    () => { label.data = 'Not allowed'; },
  ).finally(() => setTimeout(() => { label.data = 'Copy'; }, 1500))}, icon('copy'), label);
}
