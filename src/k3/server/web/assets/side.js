// The side: the live panel and the settings; and the theme.
import {$, keep, kept} from './dom.js';
import {poll} from './live.js';

const PARTS = ['live', 'settings'];
const THEMES = {auto: "the system's", light: 'light', dark: 'dark'};
const covers = matchMedia('(max-width: 60rem)');  // it covers the conversation then: one part at a time

export function show_side(name, shown) {
  if (shown && covers.matches) {
    for (const other of PARTS) if (other !== name) show_side(other, false);
  }
  $(name).hidden = !shown;
  $('show-' + name).setAttribute('aria-expanded', String(shown));
  if (name === 'live' && shown) poll();
}

// Closes what covers the conversation; false: nothing does.
export function uncover() {
  const open = covers.matches && PARTS.find((name) => !$(name).hidden);
  if (open) show_side(open, false);
  return Boolean(open);
}

function set_theme(theme) {
  document.documentElement.dataset.theme = theme;
  $('theme').title = `Theme: ${THEMES[theme]}`;
  $('theme').setAttribute('aria-label', `Theme: ${THEMES[theme]}`);
  keep(localStorage, 'k3.theme', theme);
}

export function start_side() {
  for (const name of PARTS) {
    $('show-' + name).addEventListener('click', () => show_side(name, $(name).hidden));
    $(name).querySelector('.close').addEventListener('click', () => {
      show_side(name, false);
      $('show-' + name).focus();
    });
    show_side(name, name === 'live' && !covers.matches);
  }
  covers.addEventListener('change', uncover);
  document.addEventListener('visibilitychange', poll);
  const names = Object.keys(THEMES);
  const theme = kept(localStorage, 'k3.theme', 'auto');
  set_theme(names.includes(theme) ? theme : 'auto');
  $('theme').addEventListener('click', () => {
    const now = names.indexOf(document.documentElement.dataset.theme);
    set_theme(names[(now + 1) % names.length]);
  });
}
