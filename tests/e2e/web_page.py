"""What the tests of the built-in page stand on: the server, the browser, recorded answers, and the page's handling."""
import json
import os
import shutil
import sys
import time
import unittest

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.keys import Keys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
from serve_process import ServeProcess  # noqa: E402

PATIENCE = 60  # seconds; a limit for what must happen, not a measure


def start_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE)
    return driver


# In the page: every chat request is noted; it may be changed, or answered by the given text in pieces of the given bytes.
HOOK = """
window.asked = [];
window.polls = 0;
const real = window.fetch;
window.fetch = async (path, options) => {
  if (String(path).includes('metrics')) {
    ++window.polls;
    if (window.metrics_fail) throw new TypeError('cut');
  }
  if (!String(path).includes('chat/completions')) return real(path, options);
  window.asked.push(JSON.parse(options.body));
  if (window.canned === undefined) return real(path, {...options, body: JSON.stringify({...JSON.parse(options.body), ...window.extra})});
  const {status, headers, text, size} = window.canned;
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream({async start(sink) {
    for (let at = 0; at < bytes.length; at += size) {
      sink.enqueue(bytes.slice(at, at + size));
      if (window.pause && at % window.pause === 0) await new Promise((go) => setTimeout(go, 15));
    }
    if (window.canned.lost) setTimeout(() => sink.error(new TypeError('lost')), 50);  // an error drops what was not read yet
    else sink.close();
  }});
  return new Response(body, {status, headers});
};
"""


def frames(*deltas, finish="stop", done=True):
    def frame(**choice):
        return "data: " + json.dumps({"object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]}) + "\n\n"
    usage = {"prompt_tokens": 1234, "completion_tokens": len(deltas), "total_tokens": 1234 + len(deltas),
             "prompt_tokens_details": {"cached_tokens": 1024}, "completion_tokens_details": {"reasoning_tokens": 0}}
    text = frame(delta={"role": "assistant", "content": ""}) + "".join(frame(delta=delta) for delta in deltas)
    if finish:
        text += frame(delta={}, finish_reason=finish, usage=usage)
    return text + ("data: [DONE]\n\n" if done else "")


class PageTest(unittest.TestCase):
    """One server and one browser a class; each test opens the page anew with nothing kept."""

    program = model = None  # of k3; set before the tests run

    @classmethod
    def setUpClass(cls):
        cls.start()

    @classmethod
    def start(cls, *options):
        cls.server = ServeProcess(cls.program, cls.model, "-t", "1", "--ctx", "2048", "--quiet", *options)
        cls.addClassCleanup(cls.server.stop)
        cls.driver = start_browser()
        cls.addClassCleanup(cls.driver.quit)

    def setUp(self):
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.driver.get(self.server.url + "/version")  # of the same origin, without the page's script
        self.js("sessionStorage.clear(); localStorage.clear();")
        self.driver.get_log("browser")
        self.open()

    def tearDown(self):
        bad = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertEqual([line for line in bad if "status of 4" not in line], [])  # such as what the policy forbids

    def open(self, url=None):
        self.driver.get((url or self.server.url) + "/")
        self.until(lambda: self.text("#model") or self.find("#messages .error"))
        self.js(HOOK)

    # Shorthands

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def module(self, name, script, *arguments):
        """Runs script with the exports of a module of the page in m."""
        answer = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; const given = [...arguments].slice(0, -1);"
            f"import('/{name}').then((m) => {{ {script} }}).then(done, (e) => done('threw: ' + e));", *arguments)
        if isinstance(answer, str) and answer.startswith("threw: "):
            self.fail(answer)
        return answer

    def find(self, selector):
        found = self.driver.find_elements("css selector", selector)
        return found[-1] if found else None

    def text(self, selector):
        return self.js("const n = [...document.querySelectorAll(arguments[0])].at(-1); return n ? n.textContent : ''", selector)

    def click(self, selector):
        self.find(selector).click()

    def until(self, true):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                value = true()
            except StaleElementReferenceException:
                value = None
            if value:
                return value
            if time.monotonic() > end:
                self.fail("this did not happen in time: " + self.text("main")[-400:])
            time.sleep(0.02)

    def say(self, text):
        self.find("#input").send_keys(text, Keys.ENTER)

    def busy(self):
        return self.find("#stop").is_displayed()

    def settle(self):
        self.until(lambda: not self.busy())

    def can(self, text, status=200, size=7, **more):
        headers = {"Content-Type": "text/event-stream" if status == 200 else "application/json", **more.pop("headers", {})}
        self.js("window.canned = arguments[0]", {"status": status, "headers": headers, "text": text, "size": size, **more})

    def chat(self, text, answer):
        """One turn with a canned answer."""
        self.can(answer)
        self.say(text)
        self.settle()

    def phone(self, width=390):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True})

    def assert_no_sideways_scroll(self, what):
        width, view = self.js("return [document.documentElement.scrollWidth, window.innerWidth]")
        self.assertLessEqual(width, view, what)
        wide = self.js("""return [...document.querySelectorAll('header *, main *, #side *')].filter((n) => !n.closest('pre, .unseen')
          && n.getBoundingClientRect().right > innerWidth + 0.5).map((n) => n.tagName + '.' + n.className)""")
        self.assertEqual(wide, [], what)
