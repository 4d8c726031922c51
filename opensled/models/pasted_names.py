"""Names of models as people paste them: from browsers, other programs' commands, and file managers."""

import re
import shlex
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from opensled.core.errors import UsageError
from opensled.models.hub_names import QUANT, HubName, hub_endpoint, parse

HOW = "give ORG/REPO or ORG/REPO:QUANT on Hugging Face, or download the file and give its path"
# Of other programs, in front of a model's name, and in front of its file
_NAMED_BY = re.compile(
    r"-hfr?|--hf[-_](model[-_])?repo([-_]id)?|-m|--model([-_](path|id|name|name_or_path))?|--repo([-_]id)?"
)
_VERBS = ("run", "pull", "get", "serve", "clone", "chat", "download", "load")
_FILE_BY = ("--hf-file", "-hff", "--include", "--file", "--filename", "--quant")
_HUB = (
    r"(?:(?:(?:https?|ssh):)?//)?(?:www\.|git@)?(?:huggingface\.com?|hf\.co|hf-mirror\.com)[/:]+"
    r"|jan://models/huggingface/|(?:hf|huggingface):(?://)?|(?:hf|huggingface|(?:hosted_)?vllm|lm_studio|openai)/(?=[^/]+/[^/]+$)"
)
_REVISION = re.compile(r"(?<![\w-])(?:--)?(?:revision|branch)[\"']?(?:\s*[=:]\s*|\s+)[\"']?([\w./-]+)")
# In front of a name in a settings file, or in a shell's
_KEY = r"(?:FROM\s+|(?:export\s+|set\s+|\$env:)?[\"']?[\w-]*(?:model|repo)[\w-]*[\"']?(?:\s*=\s*|:\s+))"
_QUOTES = "\"'`“”‘’«»<>"
_ELSEWHERE = re.compile(  # Docker has its models in ai/
    r"^[a-z][a-z0-9+-]+://|^([\w-]+\.)*(modelscope|ollama|lmstudio|github|kaggle|civitai|docker|ghcr|quay)\.\w+/|^ai/[^/]+$",
    re.I,
)
# Of a repository: kind, revision, file
_PAGES = r"(tree|blob|resolve|raw|blame|edit|commits?)/([^/]+)(?:/(.*))?"


def model_name(text: str) -> str:
    """The name or path that a pasted text means: ORG/REPO[:QUANT], a path, or the text as it is.

    Raises UsageError for an address that is not one of a model on a hub.
    """
    name = _bare(text)
    if not name or _is_there(name):
        return name
    if name.lower().startswith("file:"):
        return unquote(re.sub(r"^file:(?://(?:localhost)?(?=/))?", "", name, flags=re.IGNORECASE))
    name = _of_command(name) or re.sub(r"^models--([^/]+?)--([^/]+)$", r"\1/\2", name)
    if "\\" in name:
        return _from_windows(name)
    name = re.sub(r"^lmstudio://open_from_hf\?model=([^&]+)(?:&file=)?", r"hf.co/\1/", name)
    hub = re.escape(hub_endpoint().partition("://")[2])
    if found := re.match(rf"{_HUB}|(?:https?://)?{hub}/+", name, re.IGNORECASE):
        return _of_link(name[found.end() :], name)
    if _ELSEWHERE.match(name):
        raise UsageError(f"{name} is not on Hugging Face, and models of other places are not fetched; {HOW}")
    if found := re.fullmatch(r"([\w.-]+/[\w.-]+)@([\w./-]+)", name):
        return _with(found[1], "", found[2], name)
    if found := re.fullmatch(r"([\w.-]+/[\w.-]*gguf[\w.-]*)/([^/]+\.gguf)", name, re.IGNORECASE):
        return f"{found[1]}:{found[2]}"  # as LM Studio names it
    bare = name.rstrip("/").removesuffix(":latest")
    return bare if "/" not in bare or parse(bare) else name


def _bare(text: str) -> str:
    """A text without quotes around it, and invisible marks; of a link in Markdown, its target."""
    name = re.sub(r"[\u200b-\u200f\u2060\ufeff]", "", text).strip("` \t\r\n,;")
    name = re.sub(rf"^{_KEY}", "", re.sub(r"\\\s*\n", " ", name), flags=re.IGNORECASE)
    name = re.sub(r"^\[[^]]*\]\((.*)\)$", r"\1", name)
    if not re.search(f"[{_QUOTES}]", name[1:-1]):
        name = name.strip(_QUOTES)
    return name.strip()


def _of_command(text: str) -> str:
    """The name in a command of another program, or in a call of a library, with its file; "" = it is neither."""
    words = _words(text)
    behind = [*zip(["", *words], words)]
    names = [
        *(word for before, word in behind if _NAMED_BY.fullmatch(before) and word[0] not in "-*"),
        *(word for before, word in behind if before in _VERBS and word not in _VERBS and word[0] != "-"),
    ]
    if re.search(r"(^|\s)--?\w|\w\(|://", text):  # and no path with a space in it
        names += [word for before, word in behind if before[:1] != "-" and _is_on_hub(word)]
        names += filter(_is_on_hub, words)
    if len(words) < 2 or not names:
        return ""
    files = [
        _quant_of(word) if "*" in word else word
        for before, word in behind
        if word != names[0]
        and (before in _FILE_BY or "*" in word or re.match(r"[^-].*\.gguf$", before + word))
    ]
    if (revision := _REVISION.search(text)) and _is_on_hub(names[0]):
        return f"{names[0].partition('@')[0]}@{revision[1]}"
    return ":".join([names[0], *(filter(None, files) if _is_on_hub(names[0]) else ())][:2])


def _words(text: str) -> list[str]:
    """The words of a command, without `python -m`; of a call, its texts."""
    if re.search(r"\w\(\s*[\w\"']", text):
        return re.findall(r"[\"']([^\"'\s]+)[\"']", f"{text} 'call'")
    lexer = shlex.shlex(re.sub(r"(?<=python)([\d.]*(?:\.exe)?) -m ", r"\1 ", text), posix=True)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        words = [*lexer]
    except ValueError:  # a quote without its other
        words = text.split()
    return [part for word in words for part in (word.split("=", 1) if word[:1] == "-" else [word]) if part]


def _is_on_hub(word: str) -> bool:
    return bool(parse(word) or re.match(_HUB, word, re.IGNORECASE))


def _is_there(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, no home, a null character
        return False


def _from_windows(name: str) -> str:
    """A path as this system writes it, without a shell's escapes; WSL has the drives in /mnt. A name, if it is one."""
    path = re.sub(r"^([A-Za-z]):", lambda drive: f"/mnt/{drive[1].lower()}", name).replace("\\", "/")
    plain = re.sub(r"\\(?=[^\w.])", "", name)
    return next((each for each in (plain, path) if _is_there(each) or parse(each)), name)


def _of_link(link: str, name: str) -> str:
    """What a link names: `link` is all behind the host."""
    parts = urlsplit(f"//hub/{link}")
    path = re.sub(r"^(api/)?models/(?=[^/]+/[^/]+)", "", parts.path.strip("/"))
    found = re.match(r"([^/]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?$", path)
    if not found or found[1].partition("/")[0] in ("datasets", "spaces", "collections", "docs", "papers"):
        raise UsageError(f"{name} is not the page of a model; {HOW}")
    page = re.fullmatch(_PAGES, found[3] or "")
    file = page[3] if page else found[3]
    shown = parse_qs(parts.query).get("show_file_info", [""])[0]
    revision = found[2] or (page[2] if page else "")
    return _with(unquote(found[1]), shown or unquote(file or ""), unquote(revision), name)


def _with(repository: str, file: str, revision: str, name: str) -> str:
    """The name of what a file or folder of a repository belongs to. Raises UsageError for an old revision."""
    repository, _, choice = repository.removesuffix(".git").partition(":")
    if _quant_of(revision):
        revision, file = "", revision
    if revision not in ("", "main", "master", "HEAD"):
        raise UsageError(
            f"{name} is of a revision; fetch it by: opensled pull {repository} --revision {revision}, then give "
            f"{repository}"
        )
    file = file if file.lower().endswith(".gguf") else _quant_of(file)
    return str(HubName(repository, choice or file)).removesuffix(":latest")


def _quant_of(text: str) -> str:
    found = QUANT.search(text)
    return found[0] if found else ""
