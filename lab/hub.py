"""Where a checkpoint of Hugging Face lies: in a folder here, or in a download from the hub."""

import concurrent.futures
import contextlib
import functools
import re
import threading
from pathlib import Path

from model import UserError

PATIENCE = 25  # seconds that the hub may take to answer


def find_folder(name_or_path):
    """The folder of that name, or a download of OWNER/NAME from the hub. Raises UserError."""
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if not re.fullmatch(r'[\w.-]+/[\w.-]+', str(name_or_path)):
        raise UserError(f'{name_or_path}: there is no such folder; a name on the hub is OWNER/NAME')
    if path.parent.is_dir():  # a slip in out/NAME is no name on the hub
        raise UserError(f'{name_or_path}: there is no such folder in {path.parent}, which is a '
                        'folder here; so the hub was not asked')
    return download(str(name_or_path))


@functools.lru_cache
def download(name):
    """
    The folder of a download of OWNER/NAME from the hub. The hub must answer within PATIENCE
    seconds. If it fails, a complete earlier download will do. Raises UserError with the reason.
    """
    try:
        from huggingface_hub import hf_hub_download, model_info, snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    except ImportError:
        raise UserError(f'{name}: there is no such folder; to look on the hub, '
                        'pip install huggingface_hub') from None
    files = dict(allow_patterns=['*.json', '*.safetensors'])

    def reach():  # both of the hub's services: some calls of the library wait forever
        model_info(name)
        hf_hub_download(name, 'config.json')
    try:
        within(PATIENCE, reach)
        return Path(snapshot_download(name, **files))
    except Exception as error:  # of several libraries
        with contextlib.suppress(Exception):
            return Path(snapshot_download(name, local_files_only=True, **files))
        reason = str(error)
        if isinstance(error, GatedRepoError):
            reason = ('it is gated: accept its terms at '
                      f'https://huggingface.co/{name}, then run hf auth login')
        elif isinstance(error, RepositoryNotFoundError):
            reason = 'it has none of that name, or a private one, for which to run hf auth login'
        elif isinstance(error, concurrent.futures.TimeoutError):
            reason = f'no answer within {PATIENCE} s'
        message = getattr(error, 'server_message', None)
        if message:
            reason += f' ({message})'
        reason = ' '.join(reason.split()) or type(error).__name__
        raise UserError(f'{name}: there is no such folder, and the hub gave none: {reason}'
                        ) from error


def within(seconds, call):
    """
    What `call` returns or raises. Raises TimeoutError after so many seconds; the thread of the
    call ends with the process.
    """
    future = concurrent.futures.Future()

    def work():
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
    threading.Thread(target=work, daemon=True).start()
    return future.result(seconds)
