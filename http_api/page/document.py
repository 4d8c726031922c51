"""The page itself: one file without any address of elsewhere, and the headers under which a browser runs it.

Nothing but what stands in the file may run or load (Content-Security-Policy, W3C): its one script and its one style
sheet are named by their digests, requests go to this API alone, and text never becomes markup (Trusted Types).
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from http_api.ollama.routes import running

FILE = Path(__file__).with_name("page.html")


@cache
def page(framing: tuple[str, ...] = ()) -> tuple[bytes, dict[str, str]]:
    """The file and its headers; `framing`: the origins whose pages may show it, as a dashboard does."""
    content = FILE.read_bytes()
    return content, {
        "Content-Security-Policy": policy(content.decode(), framing),
        "Cache-Control": "no-cache",
        "Vary": "Accept",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        **({} if framing else {"X-Frame-Options": "DENY"}),  # for browsers that do not read frame-ancestors
    }


def policy(html: str, framing: tuple[str, ...] = ()) -> str:
    """The Content-Security-Policy of this page."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_digests(html, 'script')}",
            f"style-src {_digests(html, 'style')}",
            "connect-src 'self'",
            "img-src data:",  # its own icon, and pictures that the user attaches
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors " + (" ".join(framing) or "'none'"),
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _digests(html: str, element: str) -> str:
    """The sources that allow exactly the elements of this name in `html`."""
    found = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


async def show(framing: tuple[str, ...], request: Request) -> Response:
    """GET /: for a browser the page, for clients of Ollama the words that they look for."""
    if "text/html" not in request.headers.get("accept", ""):
        return await running(request)
    content, headers = page(framing)
    return Response(content, headers=headers, media_type="text/html; charset=utf-8")
