"""Prints an image with the digest that its registry has for it today: the value for BASE_IMAGE.

    docker build --build-arg BASE_IMAGE="$(python3 deploy/docker/resolve_base.py python:3.12-slim)" ...

Speaks the registry API of the OCI (distribution-spec 1.1: "Pulling manifests") without a container engine. The digest
is computed from the bytes that the registry sends, and must be the one that it names. Needs nothing but Python.
"""

import hashlib
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import NamedTuple

TIMEOUT = 20.0  # seconds for one answer
LARGEST = 4 << 20  # bytes of a manifest
KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class Image(NamedTuple):
    """Where an image's manifest is."""

    registry: str  # URL
    repository: str
    tag: str


def parsed(name: str) -> Image:
    """An image as Docker reads it: without a registry Docker Hub's, without a tag "latest"."""
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    host, slash, rest = path.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        return Image("https://registry-1.docker.io", path if slash else f"library/{path}", tag)
    # As Docker has it, the only ones without TLS
    local = host.partition(":")[0] in ("localhost", "127.0.0.1")
    return Image(f"{'http' if local else 'https'}://{host}", rest, tag)


def digest(image: Image) -> str:
    """ "sha256:..." of the manifest; raises OSError or ValueError."""
    url = f"{image.registry}/v2/{image.repository}/manifests/{image.tag}"
    try:
        return _digest(_get(url))
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
        token = _token(error.headers.get("WWW-Authenticate", ""))
    return _digest(_get(url, token))


def _get(url: str, token: str = "") -> tuple[bytes, str]:
    headers = {"Accept": ", ".join(KINDS)} | ({"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as reply:
        return reply.read(LARGEST), reply.headers.get("Docker-Content-Digest", "")


def _digest(answer: tuple[bytes, str]) -> str:
    body, named = answer
    found = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if named and named != found:
        raise ValueError(f"the registry names {named} and sends {found}")
    return found


def _token(challenge: str) -> str:
    """A token for readers without an account, from where the registry's `WWW-Authenticate` says."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    if not realm.startswith(("https://", "http://127.0.0.1:")):
        raise ValueError("the registry asks for an account")
    with urllib.request.urlopen(f"{realm}?{urllib.parse.urlencode(fields)}", timeout=TIMEOUT) as reply:
        answer = json.loads(reply.read(LARGEST))
    return str(answer.get("token") or answer.get("access_token") or "")


def main(arguments: list[str]) -> int:
    """Exit status 0 with the image on standard output, else one line on standard error."""
    if len(arguments) != 1 or "@" in arguments[0]:
        print("usage: resolve_base.py IMAGE[:TAG]", file=sys.stderr)
        return 2
    image = parsed(arguments[0])
    try:
        print(f"{arguments[0]}@{digest(image)}")
    except (OSError, ValueError) as error:
        problem = f"{image.registry} gives no digest of {arguments[0]}: {error}"
        print(f"{problem}; run this where a registry is reachable", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
