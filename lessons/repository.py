"""
The address of this repository. The page for the browser, the notebook and the README take it from
here, and from nowhere else.

As long as it is empty, the page and the README link to the files beside them, and the notebook says
in one sentence that it needs the other files. Once the repository has an address, write it here.
Then bring the rest up to date, and switch on Pages (.github/workflows/pages.yml says where):

    python -m lessons.page       # the page, and the README's badges
    python -m lessons.notebook
"""

ADDRESS = ''  # such as 'https://github.com/you/nanophase', without a slash at the end


def website(address):
    """Where GitHub Pages shows the page of a repository at `address`; '' if it has none."""
    if not address:
        return ''
    owner, name = address.rstrip('/').split('/')[-2:]
    return f'https://{owner.lower()}.github.io/{name}/'
