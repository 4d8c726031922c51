"""Names on a hub, and what the names of GGUF files tell."""

import pytest

from edge_client.device.config import EdgeConfig
from edge_client.device.prompt_config import ChatConfig
from edge_client.terminal.run_config import RunConfig
from opensled.cli.config import options
from opensled.core.errors import UsageError
from opensled.models.hub_names import HubName, choose_model, gguf_models, parse
from opensled.models.model_pairs import PAIRS, pair_of
from opensled.models.models_command import PathConfig
from opensled.models.pasted_names import model_name
from opensled.models.pull import PullConfig
from verify_server.gpu_check.config import SelftestConfig
from verify_server.options.serve_config import ServeConfig


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("org/x-GGUF:Q4_K_M", HubName("org/x-GGUF", "Q4_K_M")),
        ("org/x:a-file.gguf", HubName("org/x", "a-file.gguf")),
        ("tiny", None),
        ("models/x.gguf", None),
        ("models/pytorch_model.bin", None),
        ("../x", None),
        ("a/..", None),
        ("a/b/c", None),
        ("a/b..c", None),
        ("a--b/c", None),
        ("/a/b", None),
        ("a/b:", None),
        ("a/b:../c", None),
        ("a/b\n", None),
        ("ä/b", None),
    ],
)
def test_names(name, expected):
    assert parse(name) == expected
    assert expected is None or str(expected) == name


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Llama-3.2-1B-Instruct-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Llama-3.2-1B-Instruct-IQ3_M.gguf", "IQ3_M"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-f16.gguf", "F16"),
        ("model-bf16-00001-of-00001.gguf", "BF16"),
        ("q8/Q8_0.GGUF", "Q8_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("llama-3.2-1b.gguf", "llama-3.2-1b"),
    ],
)
def test_the_quantization_in_a_files_name(file, quant):
    assert [model.quant for model in gguf_models([file])] == [quant]


def test_which_is_taken_first():
    names = [
        "a-f32.gguf",
        "a-q8_0.gguf",
        "a-q2_k.gguf",
        "a-q4_k_m.gguf",
        "mmproj-a-f16.gguf",
        "a.imatrix.gguf",
    ]
    models = gguf_models(names)
    assert [model.quant for model in models] == ["Q4_K_M", "Q8_0", "F32", "Q2_K"]
    assert choose_model(models, "") is models[0] and choose_model([], "") is None
    assert choose_model(models, "q2_K") is models[3] and choose_model(models, "a-q2_k.gguf") is models[3]
    assert choose_model(models, "Q3_K") is None
    two = gguf_models(["old/a-1b-q4_0.gguf", "a-1b-q4_0.gguf", "a-3b-q4_0.gguf"])
    assert [model.quant for model in two] == ["Q4_0", "a-3b-q4_0", "old/a-1b-q4_0"]


def test_a_split_model_counts_once_and_only_if_it_is_whole():
    parts = [f"b/x-q4_0-{n:05}-of-00003.gguf" for n in (3, 1, 2)]
    (model,) = gguf_models([*parts, "y-q8_0-00001-of-00002.gguf"])
    assert model.files == tuple(sorted(parts)) and model.stem == "x-q4_0"


# The choice, the file that is taken ("-": none), and the others beside it
TAKEN = """
: x-7b-Q4_K_M-imat.gguf x-7b-IQ2_M-imat.gguf x-7b-Q8_0-imat.gguf
Q4_K_M: x-7b-Q4_K_M-imat.gguf x-7b-Q8_0-imat.gguf
Q4_K_M-imat: x-7b-Q4_K_M-imat.gguf x-7b-Q8_0-imat.gguf
Q4_K_M: x-imatrix-Q4_K_M.gguf x-imatrix-Q8_0.gguf imatrix.gguf
: x-imatrix-Q4_K_M.gguf x-imatrix-Q8_0.gguf x-imatrix.gguf
: x-Q8_0.gguf x.imatrix.gguf x-f16.imatrix.gguf imatrix_unsloth.gguf imatrix-x-Q4_K_M.gguf
: x-mini-4k-q4.gguf x-mini-4k-fp16.gguf
q4: x-mini-4k-q4.gguf x-mini-4k-fp16.gguf
FP16: x-f16.gguf x-Q8_0.gguf
f16: x-fp16.gguf x-bf16.gguf
Q4: x-Q4_K_M.gguf x-Q4_0.gguf x-IQ4_XS.gguf x-Q5_K_M.gguf
Q8: x-Q8_0.gguf x-UD-Q8_K_XL.gguf
Q4_K: x-Q4_K_M.gguf x-Q4_K_S.gguf
4bit: x-Q4_K_M.gguf x-Q8_0.gguf
int8: x-Q8_0.gguf x-Q4_K_M.gguf
Q4-K-M: x-q4_k_m.gguf x-q8_0.gguf
q4_K_M: X.Q4_K_M.gguf X.Q8_0.gguf
Q4_K_M: x-q4-k-m.gguf x-q8-0.gguf
Q4_K_M: Q4_K_M.gguf Q8_0.gguf
i1-Q4_K_M: x.i1-Q4_K_M.gguf x.i1-IQ1_S.gguf
Q4_K_M: x.i1-Q4_K_M.gguf x.i1-IQ1_S.gguf
Q4_K_XL: x-UD-Q4_K_XL.gguf x-UD-IQ1_M.gguf
UD-Q4_K_XL: x-UD-Q4_K_XL.gguf x-Q4_K_M.gguf
Q4_K_M: x-Q4_K_M.gguf x-UD-Q4_K_XL.gguf
: x-Q4_K_M.gguf x-UD-Q4_K_XL.gguf x-Q4_0_4_4.gguf BF16/x-BF16.gguf x-UD-IQ1_M.gguf
IQ4_XS: x-IQ4_XS.gguf x-IQ4_NL.gguf x-Q4_K_M.gguf
MXFP4: x-mxfp4.gguf x-F16.gguf
mxfp4: x-MXFP4_MOE.gguf x-F16.gguf
: x-IQ4_XS.gguf x-F16.gguf x-IQ2_M.gguf
: x-Q3_K_M.gguf x-IQ2_M.gguf x-Q2_K.gguf x-BF16.gguf
: x-Q4_0.gguf x-IQ4_KSS.gguf x-Q4_0_8_8.gguf
: x-UD-Q2_K_XL.gguf x-IQ1_S.gguf x-TQ1_0.gguf
: x.gguf x-f16.gguf
: x-Q5_K_M.gguf x-IQ4_K.gguf x-IQ5_K.gguf x-IQ4_KS.gguf x-IQ6_K.gguf x-IQ4_KT.gguf x-IQ4_KSS.gguf
: x-Q8_0.gguf x-00001-of-00002-Q4_K_M.gguf x-00002-of-00002-Q4_K_M.gguf
: - x-IQ4_K.gguf x-IQ2_KS.gguf x-Q4_0_8_8.gguf x-Q4_K_R4.gguf
IQ4_K: x-IQ4_K.gguf x-IQ4_KS.gguf
: x-9b-Q8_0.gguf x-9b-MTP-Q4_K_M.gguf x-9b-abliterated-Q4_K_M.gguf mmproj-x-F16.gguf eagle3-x-Q4_K_M.gguf
Q4_K_M: x-9b-Q4_K_M.gguf x-9b-MTP-Q4_K_M.gguf x-9b-thinking-Q4_K_M.gguf
Q4_K_M: - x-9b-Q8_0.gguf x-9b-draft-Q4_K_M.gguf
MTP-Q4_K_M: x-9b-MTP-Q4_K_M.gguf x-9b-Q4_K_M.gguf
F16: - x-Q8_0.gguf x-lora-F16.gguf mm-proj-F16.gguf
Q4_K_M: x-9b-MTP-Q4_K_M.gguf x-9b-MTP-Q8_0.gguf
Q8_0: x-Q8_0-v2.gguf x-Q4_K_M-v2.gguf
Q8_0: Q8_0/x-70b.gguf Q4_K_M/x-70b.gguf
Q8_0: Q8_0/x-00001-of-00001.gguf Q4_K_M/x-Q4_K_M-00001-of-00001.gguf
: x-f16.q6.gguf x-f16.gguf
7b-instruct-q4_K_M: x-7b-instruct-Q4_K_M.gguf x-7b-instruct-Q8_0.gguf
latest: x-Q4_K_M.gguf x-Q8_0.gguf
sub/x-Q4_K_M.gguf: sub/x-Q4_K_M.gguf x-Q4_K_M.gguf
x-00001-of-00001.gguf: x-00001-of-00001.gguf y-Q4_K_M.gguf
Q3_K_M: - x-Q4_K_M.gguf
"""


@pytest.mark.parametrize("row", TAKEN.strip().split("\n"))
def test_the_file_a_person_would_take(row):
    choice, _, names = row.partition(":")
    right, *others = names.split()
    files = [*others, *([right] if right != "-" else [])]
    found = choose_model(gguf_models(files), parse(f"a/b:{choice}").choice if choice else "")
    assert (found.files[0] if found else "-") == right


PASTED = """
'org/x-GGUF' = org/x-GGUF
org/x:latest = org/x
org/x@q4_k_m = org/x:q4_k_m
org/x@main = org/x
hf.co/org/x:Q4_K_M = org/x:Q4_K_M
HF.co/org/x:latest = org/x
https://www.huggingface.co/org/x/ = org/x
https://huggingface.co/org/x/tree/main/Q4_K_M = org/x:Q4_K_M
https://huggingface.co/org/x/blob/main/x-Q4_K_M.gguf = org/x:x-Q4_K_M.gguf
https://huggingface.co/org/x/resolve/main/a/x%20Q8_0.gguf?download=true = org/x:a/x Q8_0.gguf
https://huggingface.co/org/x/blob/main/config.json = org/x
https://huggingface.co/org/x?show_file_info=x-Q8_0.gguf = org/x:x-Q8_0.gguf
https://huggingface.co/org/x?library=transformers#usage = org/x
https://huggingface.co/api/models/org/x = org/x
https://hf-mirror.com/org/x = org/x
git clone https://huggingface.co/org/x.git = org/x
hf://org/x@main/x.gguf = org/x:x.gguf
huggingface:org/x:Q4_K_M = org/x:Q4_K_M
huggingface/org/x = org/x
git lfs install && git clone git@hf.co:org/x.git = org/x
‘org/x\u200b’, = org/x
export MODEL="org/x" = org/x
"model": "org/x", = org/x
FROM hf.co/org/x:Q4_K_M = org/x:Q4_K_M
models--org--x = org/x
org\\x = org/x
python -m llama_cpp.server --hf_model_repo_id org/x --model *q8_0.gguf = org/x:q8_0
hf download org/x x.gguf --revision v2 = --revision v2
AutoModel.from_pretrained("org/x", revision="v2") = --revision v2
ollama run hf.co/org/x:Q4_K_M --verbose = org/x:Q4_K_M
ollama run llama3.2 = llama3.2
llama-cli --hf-repo org/x --hf-file x-q8_0.gguf = org/x:x-q8_0.gguf
-hf org/x:Q4_K_M = org/x:Q4_K_M
hf download org/x x-Q4_K_M.gguf --local-dir . = org/x:x-Q4_K_M.gguf
vllm serve "org/x" = org/x
vllm serve --port 8000 org/x --max-model-len 4096 = org/x
./llama-server -hf org/x:Q4_K_M = org/x:Q4_K_M
./build/bin/llama-server -c 4096 -ngl 99 -hf org/x:Q8_0 --jinja = org/x:Q8_0
CUDA_VISIBLE_DEVICES=0 llama-server -hf org/x = org/x
$ llama-server -hf=org/x = org/x
C:\\llama\\llama-server.exe -hf org/x = org/x
llama-server -hf org/x --mmproj m.gguf -m=y.gguf = org/x
lemonade pull org/x:Q4_0 = org/x:Q4_0
python3 -m vllm.entrypoints.openai.api_server --model org/x = org/x
python -m sglang.launch_server --port 1 --model-path org/x = org/x
mlx_lm.generate --prompt "hi there" --model org/x = org/x
docker run --gpus all vllm/vllm-openai:latest --model org/x = org/x
docker exec -it ollama ollama run llama3.2 "Why?" = llama3.2
huggingface-cli download org/x --include "*Q4*" --local-dir a/b = org/x:Q4
model = AutoModelForCausalLM.from_pretrained("org/x", device_map="auto") = org/x
Llama.from_pretrained(repo_id="org/x", filename="*q8_0.gguf") = org/x:q8_0
pipeline('text-generation', model='org/x') = org/x
```ollama run hf.co/org/x:Q8_0``` = org/x:Q8_0
wget -c https://huggingface.co/org/x/resolve/main/x-Q8_0.gguf = org/x:x-Q8_0.gguf
[org/x](https://huggingface.co/org/x) = org/x
jan://models/huggingface/org/x = org/x
lmstudio://open_from_hf?model=org/x&file=x-Q8_0.gguf = org/x:x-Q8_0.gguf
org/x-GGUF/x-Q8_0.gguf = org/x-GGUF:x-Q8_0.gguf
my models/x - new.gguf = my models/x - new.gguf
docker model pull hf.co/org/x = org/x
file:///tmp/a%20b.gguf = /tmp/a b.gguf
C:\\models\\x.gguf = C:\\models\\x.gguf
~/models/x.gguf = ~/models/x.gguf
tiny:latest = tiny
models/x.gguf = models/x.gguf
org/x@v2 = --revision v2
https://huggingface.co/org/x/tree/refs%2Fpr%2F1 = --revision refs/pr/1
https://huggingface.co/org = is not the page of a model
https://huggingface.co/datasets/org/x = is not the page of a model
https://modelscope.cn/models/org/x = is not on Hugging Face
registry.ollama.ai/library/qwen3:8b = is not on Hugging Face
docker model run ai/smollm2 = is not on Hugging Face
s3://b/x.gguf = is not on Hugging Face
"""


@pytest.mark.parametrize("row", PASTED.strip().split("\n"))
def test_names_as_they_are_pasted(row):
    pasted, meant = row.rsplit(" = ", 1)
    try:
        assert model_name(f" {pasted}\n") == meant
    except UsageError as error:
        assert meant in str(error)


@pytest.mark.parametrize("named", ["hub.lan", "https://hub.lan/", "'https://hub.lan'"])
def test_links_of_a_mirror_however_it_is_named(named, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", named)
    assert model_name("https://hub.lan/org/x/tree/main") == model_name("hub.lan/org/x") == "org/x"


def test_every_option_with_a_model_reads_pasted_names():
    for kind in (PullConfig, PathConfig, RunConfig, ServeConfig, EdgeConfig, ChatConfig, SelftestConfig):
        named = [item for item in options(kind) if item.read is model_name]
        assert named and all(item.parse("hf.co/a/b", "x") == "a/b" for item in named)
        assert {"name", "model", "draft_model"} & {item.name for item in options(kind)} <= {
            item.name for item in named
        }


def test_the_pairs_have_names_of_a_hub():
    for name, pair in PAIRS.items():
        assert parse(pair.target).choice and parse(pair.draft).choice and parse(name) is None
        assert pair_of(name) is not None and pair_of(pair.target) is not None
        assert pair_of(pair.target.partition(":")[0] + ":Q2_K") is not None
    assert pair_of("tiny") is None
