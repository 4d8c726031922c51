"""What Open WebUI and Home Assistant send to Ollama, written down from their sources.

Open WebUI 0.12.4: `open_webui/routers/ollama.py` sends the bodies that `open_webui/utils/payload.py` makes
(`convert_payload_openai_to_ollama`, `apply_model_params_to_body_ollama`). Home Assistant 2026.11.0:
`homeassistant/components/ollama/entity.py` (`_async_handle_chat_log`) through the Python client `ollama`, which leaves
out what is None.
"""

from typing import Any

from tests.fake_backend import HELLO

MODEL = "tiny:latest"  # as /api/tags lists it, and both take it from there

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PARIS = {"name": "get_current_weather", "arguments": {"city": "Paris"}}
# homeassistant/helpers/llm.py: an intent as a tool, as the client `ollama` passes it on
TURN_ON = {
    "type": "function",
    "function": {
        "name": "HassTurnOn",
        "description": "Turns on/opens/presses a device or entity.",
        "parameters": {
            "type": "object",
            "required": [],
            "properties": {
                "name": {"type": "string"},
                "area": {"type": "string"},
                "domain": {"type": "array", "items": {"type": "string"}},
                "device_class": {"type": "array", "items": {"type": "string", "enum": ["outlet", "switch"]}},
            },
        },
    },
}
KITCHEN = {"name": "kitchen light"}

WEBUI_CHATS: dict[str, dict[str, Any]] = {
    # utils/payload.py: convert_payload_openai_to_ollama
    "a question": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True},
    # routers/tasks.py: generate_title, with its max_tokens
    "a title": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "### Task:\nGenerate a title."}],
        "stream": False,
        "options": {"num_predict": 24},
    },
    # utils/payload.py: apply_model_params_to_body_ollama, with the parameters a user can set
    "all parameters": {
        "model": MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "think": False,
        "keep_alive": "5m",
        "format": "json",
        "options": {
            "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "seed": 3, "stop": ["\n\n"],
            "num_ctx": 4096, "num_batch": 512, "num_keep": 24, "num_predict": 24, "num_gpu": 1, "num_thread": 2,
            "use_mmap": True, "use_mlock": False, "repeat_last_n": 64, "repeat_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0, "mirostat_eta": 0.1,
            "mirostat_tau": 5.0,
        },
    },
    # utils/payload.py: convert_messages_openai_to_ollama, in the second round of a native tool call
    "the result of a tool": {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": "What is the weather in Paris?"},
            {
                "role": "assistant",
                "thinking": "I should look.",
                "tool_calls": [
                    {"index": 0, "id": "call_a1", "function": PARIS}
                ],
                "content": "",
            },
            {"role": "tool", "content": "18 degrees", "tool_call_id": "call_a1"},
        ],
        "stream": True,
        "tools": [WEATHER],
        "options": {"num_predict": 24},
    },
}  # fmt: skip

# routers/ollama.py: unload_model
WEBUI_UNLOAD = {"model": MODEL, "keep_alive": 0, "prompt": ""}
# routers/ollama.py: generate_completion
WEBUI_GENERATE = {"model": MODEL, "prompt": "Hi", "stream": True, "options": {"num_predict": 8}}

HOME_USUAL = {"model": MODEL, "stream": True, "options": {"num_ctx": 8192}, "keep_alive": -1}
HOME_SYSTEM = {"role": "system", "content": "You are a voice assistant for Home Assistant."}
HOME_CHATS: dict[str, dict[str, Any]] = {
    "a command": {
        **HOME_USUAL,
        "messages": [HOME_SYSTEM, {"role": "user", "content": "Turn on the kitchen light."}],
        "tools": [TURN_ON],
        "think": False,
    },
    "after the call": {
        **HOME_USUAL,
        "messages": [
            HOME_SYSTEM,
            {"role": "user", "content": "Turn on the kitchen light."},
            {"role": "assistant", "tool_calls": [{"function": {"name": "HassTurnOn", "arguments": KITCHEN}}]},
            {"role": "tool", "content": '{"data":{"success":true},"error":null}'},
        ],
        "tools": [TURN_ON],
        "think": False,
    },
    "no tools": {
        **HOME_USUAL,
        "messages": [HOME_SYSTEM, *HELLO, {"role": "assistant"}, *HELLO],
        "keep_alive": "300s",
    },
    # ai_task.py: OllamaTaskEntity, with a structure
    "a task with a structure": {
        **HOME_USUAL,
        "messages": [HOME_SYSTEM, {"role": "user", "content": "How many days are 2 weeks?"}],
        "format": {
            "type": "object",
            "properties": {"days": {"type": "integer", "description": "The days"}},
            "required": ["days"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip

CHATS = {
    **{f"Open WebUI: {name}": body for name, body in WEBUI_CHATS.items()},
    **{f"Home Assistant: {name}": body for name, body in HOME_CHATS.items()},
}
