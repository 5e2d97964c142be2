"""
The page for the browser, lessons/phase.html: its address, its pictures, and a folder for a website.

    python -m lessons.page                  # puts in the address of lessons/repository.py
    python -m lessons.page site ADDRESS     # a folder for GitHub Pages: the page is its front page
    python -m lessons.page pictures         # figures/phase.png and phase.gif; needs Chromium
"""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lessons.repository import ADDRESS, website

LESSONS = Path(__file__).resolve().parent
PAGE = LESSONS / 'phase.html'
PICTURE = LESSONS / 'figures' / 'phase.png'
FILM = LESSONS / 'figures' / 'phase.gif'
LINK = re.compile(r'(phase\.(?:png|gif)\)\]\()[^)]*(\))')  # of the picture in a README
BADGES = re.compile('(<!-- badges -->\n)(?:.*\n)?(<!-- end -->)')
BROWSERS = ['chromium', os.environ.get('CHROME', ''), 'chromium-browser', 'google-chrome', 'chrome']


def build(text, address):
    """The page `text` with the address of now. Raises ValueError at a lost place."""
    site = website(address)
    parts = [
        (r"(const REPOSITORY = ')[^']*(')", address),
        (r'(<meta property="og:image" content=")[^"]*(")', f'{site}figures/phase.png'),
        (r'(<meta property="og:url" content=")[^"]*(")', site),
    ]
    for place, new in parts:
        text, found = re.subn(place, lambda match: match[1] + new + match[2], text)
        if found != 1:
            raise ValueError(f'{PAGE.name} has {place!r} {found} times, and not once')
    return text


def badges(address):
    """A line of two pictures, the tests and the course in Colab; '' without an address."""
    if not address:
        return ''
    colab = 'https://colab.research.google.com'
    course = f'{colab}/{address.replace("https://", "").replace(".com", "")}'
    return (f'[![tests]({address}/actions/workflows/test.yml/badge.svg)]'
            f'({address}/actions/workflows/test.yml) [![the course in Colab]'
            f'({colab}/assets/colab-badge.svg)]({course}/blob/main/lessons/course.ipynb)\n')


def link(readme, beside):
    """A README's text with its badges, whose picture leads to the page: on the web, or `beside`."""
    readme = BADGES.sub(lambda match: match[1] + badges(ADDRESS) + match[2], readme)
    return LINK.sub(lambda match: match[1] + (website(ADDRESS) or beside) + match[2], readme)


def publish(folder, address):
    """Write a folder for a website at `address`: the page as index.html, and its picture."""
    folder = Path(folder)
    (folder / 'figures').mkdir(parents=True, exist_ok=True)
    page = build(PAGE.read_text(encoding='utf-8'), address)
    (folder / 'index.html').write_text(page, encoding='utf-8')
    shutil.copy(PICTURE, folder / 'figures' / PICTURE.name)
    print(f'wrote {folder}/index.html')


class Browser:
    """A Chromium without a window. It is told what to do by the DevTools protocol, in two pipes."""

    def __init__(self, program, folder):
        import fcntl  # not on Windows

        ends = [*os.pipe(), *os.pipe()]
        # above 3 and 4, where the browser looks for its ends
        read, self.out, self.answers, write = [
            fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
        command = [program, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
                   '--remote-debugging-pipe', f'--user-data-dir={folder}']
        self.process = subprocess.Popen(
            command, close_fds=False, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: (os.dup2(read, 3), os.dup2(write, 4)))
        for end in (*ends, read, write):
            os.close(end)
        self.rest, self.count, self.session = b'', 0, {}
        target = self.ask('Target.createTarget', url='about:blank')['targetId']
        session = self.ask('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        self.session = dict(sessionId=session)

    def ask(self, method, **params):
        """The result of one command of the protocol."""
        self.count += 1
        message = dict(id=self.count, method=method, params=params, **self.session)
        os.write(self.out, json.dumps(message).encode() + b'\0')
        while True:
            while b'\0' not in self.rest:
                self.rest += os.read(self.answers, 1 << 20) or sys.exit('the browser has ended')
            line, self.rest = self.rest.split(b'\0', 1)
            answer = json.loads(line)
            if answer.get('id') == self.count:
                return answer['result']

    def run(self, code):
        """What the body of an async function returns in the page, through JSON."""
        answer = self.ask('Runtime.evaluate', expression=f'(async () => {{ {code} }})()',
                          awaitPromise=True, returnByValue=True)
        if 'exceptionDetails' in answer:
            raise RuntimeError(answer['exceptionDetails']['exception']['description'])
        return answer['result'].get('value')

    def open(self, hash='', width=1280, height=720, mobile=False):
        """Load the page anew, at a step, in a window of this size."""
        self.ask('Emulation.setDeviceMetricsOverride', width=width, height=height, mobile=mobile,
                 deviceScaleFactor=1)
        light = dict(name='prefers-color-scheme', value='light')
        self.ask('Emulation.setEmulatedMedia', features=[light])
        self.ask('Page.navigate', url='about:blank')
        self.ask('Page.navigate', url=PAGE.as_uri() + hash)
        self.run('''while (!globalThis.phase?.runs) await new Promise(go => setTimeout(go, 20))
                 await Promise.all(phase.runs.map(run => run.begun))''')

    def screenshot(self):
        return base64.b64decode(self.ask('Page.captureScreenshot')['data'])

    def close(self):
        self.process.terminate()
        self.process.wait()


def find_browser():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def draw_film(browser):
    """A film of a training for the README, some twenty seconds, and a still for previews."""
    from PIL import Image  # comes with matplotlib

    def picture():
        return Image.open(io.BytesIO(browser.screenshot())).convert('RGB')

    def frame(update):
        """The pictures as they are while it trains: without what comes later."""
        browser.run(f"""run.looks = learned.looks.slice(0, {update} + 1)
            run.losses = learned.losses.slice(0, {update})
            phase.show()""")
        return picture()

    browser.open('#chapter=1.4', 1200, 675)
    browser.run('await phase.train(true); phase.show()')
    still = picture()
    still.quantize(256, Image.Quantize.FASTOCTREE, dither=0).save(PICTURE, optimize=True)
    browser.open('#chapter=1.4', 1000, 520)
    browser.run("""await phase.train(true)
        globalThis.run = phase.runs[0]
        globalThis.learned = { ...run }
        document.getElementById('light').textContent =
          `#chapters, #story, #controls, nav, .hint { display: none !important }
          .page { min-height: 0; row-gap: 2px }`""")
    # each of the first 40 updates, in which it learns, then every fourth
    frames = [frame(update) for update in [*range(41), *range(44, 121, 4)]]
    both = Image.new('RGB', (1000, 1040))  # all colours: of an early frame and of the last
    for y, shown in [(0, frames[8]), (520, frames[-1])]:
        both.paste(shown, (0, y))
    colours = both.quantize(64, Image.Quantize.FASTOCTREE)
    frames = [shown.quantize(palette=colours, dither=0) for shown in frames]
    times = [1500] + 40 * [200] + 19 * [150] + [6000]  # milliseconds
    frames[0].save(FILM, save_all=True, append_images=frames[1:], duration=times, loop=0,
                   optimize=True)
    print(f'wrote {PICTURE} and {FILM}')


def main(arguments):
    if arguments == ['pictures']:
        with tempfile.TemporaryDirectory() as folder:
            browser = Browser(find_browser() or sys.exit('there is no Chromium here'), folder)
            draw_film(browser)
            browser.close()
        return
    if len(arguments) == 2:
        publish(*arguments)
        return
    if arguments:
        sys.exit('python -m lessons.page takes nothing, "pictures", or a folder and an address')
    page = build(PAGE.read_text(encoding='utf-8'), ADDRESS)
    PAGE.write_text(page, encoding='utf-8')
    print(f'wrote {PAGE}')
    for readme, beside in [(LESSONS.parent / 'README.md', 'lessons/phase.html'),
                           (LESSONS / 'README.md', 'phase.html')]:
        text = readme.read_text(encoding='utf-8')
        readme.write_text(link(text, beside), encoding='utf-8')


if __name__ == '__main__':
    main(sys.argv[1:])
