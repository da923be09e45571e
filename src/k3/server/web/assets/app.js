// Starts the page of k3 serve: the message field here, the rest in the modules beside this one.
import {$, focus_input} from './dom.js';
import {is_send} from './messages.js';
import {send, start_chat, stop} from './chat.js';
import {start_settings} from './settings.js';
import {start_side, uncover} from './side.js';

function fit_input() {
  const input = $('input');
  input.style.height = 'auto';
  input.style.height = `${input.scrollHeight}px`;
  $('send').disabled = input.value.trim() === '';
}

$('input').addEventListener('input', fit_input);
$('input').addEventListener('keydown', (event) => {
  if (!is_send(event)) return;
  event.preventDefault();
  $('composer').requestSubmit();
});
$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  if (!send($('input').value)) return;
  $('input').value = '';
  fit_input();
});
$('stop').addEventListener('click', stop);
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !uncover()) stop();
});

start_side();
start_settings();
start_chat();
fit_input();
focus_input();
