"""Where a checkpoint of Hugging Face lies: a folder here, or a download from the hub."""

import concurrent.futures
import contextlib
import functools
import re
import threading
from pathlib import Path

PATIENCE = 25  # seconds that the hub may take to answer


def find_folder(name_or_path):
    """The folder of that name, or else a snapshot of the repository of that name on the hub."""
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if not re.fullmatch(r'[\w.-]+/[\w.-]+', str(name_or_path)):
        raise FileNotFoundError(f'{name_or_path}: there is no such folder, and names on the hub are OWNER/NAME')
    if path.parent.is_dir():  # a slip in out/NAME is no name on the hub
        raise FileNotFoundError(f'{name_or_path}: there is no such folder in {path.parent}, which is a folder here; so '
                                'the hub was not asked')
    return download(str(name_or_path))


@functools.lru_cache
def download(name):
    """
    The folder of a snapshot of OWNER/NAME on the hub. Its first file, which is small, must be here within PATIENCE
    seconds. If the hub fails, a whole earlier download will do. Raises ValueError, with the reason.
    """
    try:
        from huggingface_hub import hf_hub_download, model_info, snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    except ImportError:
        raise ImportError(f'{name}: no such folder; to look on the hub, pip install huggingface_hub') from None
    which = dict(allow_patterns=['*.json', '*.safetensors'])

    def reach():  # both of the hub's services: some calls of the library wait forever
        model_info(name)
        hf_hub_download(name, 'config.json')
    try:
        within(PATIENCE, reach)
        return Path(snapshot_download(name, **which))
    except Exception as error:  # of several libraries
        with contextlib.suppress(Exception):
            return Path(snapshot_download(name, local_files_only=True, **which))
        reasons = {  # a gated one is also one that is not found
            GatedRepoError: f'it is gated: accept its terms at https://huggingface.co/{name}, then run hf auth login',
            RepositoryNotFoundError: 'it has none of that name, or a private one, for which to run hf auth login',
            concurrent.futures.TimeoutError: f'no answer within {PATIENCE} s'}
        reason = next((reason for kind, reason in reasons.items() if isinstance(error, kind)), str(error))
        told = getattr(error, 'server_message', None)
        reason = ' '.join((f'{reason} ({told})' if told else reason).split()) or type(error).__name__
        raise ValueError(f'{name}: there is no such folder, and the hub gave none: {reason}') from error


def within(seconds, call):
    """What `call` returns or raises. After so many seconds, TimeoutError; the call's thread ends with the process."""
    future = concurrent.futures.Future()

    def work():
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
    threading.Thread(target=work, daemon=True).start()
    return future.result(seconds)
