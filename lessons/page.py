"""
Bring lessons/phase.html up to date, and the links to it: it holds phase_model.js word for word, and
the address of lessons/repository.py.

    python -m lessons.page                  # in place, after a change of one of the two
    python -m lessons.page site ADDRESS     # a folder for GitHub Pages: the page is its front page
"""

import re
import shutil
import sys
from pathlib import Path

from lessons.repository import ADDRESS, website

LESSONS = Path(__file__).resolve().parent
PAGE = LESSONS / 'phase.html'
MODULE = LESSONS / 'phase_model.js'
PICTURE = LESSONS / 'figures' / 'phase.png'
LINK = re.compile(r'(phase\.png\)\]\()[^)]*(\))')  # of the picture in a README


def build(text, address):
    """The page `text` with the module and the address of now. Raises ValueError at a lost place."""
    module = MODULE.read_text(encoding='utf-8')
    site = website(address)
    parts = [
        (r'(<script id="model" type="text/plain">\n).*?(</script>)', module),
        (r"(const REPOSITORY = ')[^']*(')", address),
        (r'(<meta property="og:image" content=")[^"]*(")', f'{site}figures/phase.png'),
        (r'(<meta property="og:url" content=")[^"]*(")', site),
    ]
    for place, new in parts:
        text, found = re.subn(place, lambda match: match[1] + new + match[2], text,
                              flags=re.DOTALL)
        if found != 1:
            raise ValueError(f'{PAGE.name} has {place!r} {found} times, and not once')
    return text


def link(readme, beside):
    """A README's text whose picture leads to the page: on the web, or `beside` it."""
    return LINK.sub(lambda match: match[1] + (website(ADDRESS) or beside) + match[2], readme)


def publish(folder, address):
    """Write a folder for a website at `address`: the page as index.html, and its picture."""
    folder = Path(folder)
    (folder / 'figures').mkdir(parents=True, exist_ok=True)
    page = build(PAGE.read_text(encoding='utf-8'), address)
    (folder / 'index.html').write_text(page, encoding='utf-8')
    shutil.copy(PICTURE, folder / 'figures' / PICTURE.name)
    print(f'wrote {folder}/index.html')


def main(arguments):
    if len(arguments) == 2:
        publish(*arguments)
        return
    if arguments:
        sys.exit('python -m lessons.page takes no argument, or a folder and an address')
    page = build(PAGE.read_text(encoding='utf-8'), ADDRESS)
    PAGE.write_text(page, encoding='utf-8')
    print(f'wrote {PAGE}')
    for readme, beside in [(LESSONS.parent / 'README.md', 'lessons/phase.html'),
                           (LESSONS / 'README.md', 'phase.html')]:
        text = readme.read_text(encoding='utf-8')
        readme.write_text(link(text, beside), encoding='utf-8')


if __name__ == '__main__':
    main(sys.argv[1:])
