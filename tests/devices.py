"""A device with an oracle for a drafter, on a server over a fake target."""

from contextlib import aclosing, asynccontextmanager

from edge_client.device.device import Device
from edge_client.drafters.base import DrafterFactory
from edge_client.lengths.fixed import FixedLength
from opensled.core.answer import Task
from opensled.models.store import model_path
from opensled.text.tokenizer import TargetTokenizer
from tests.fakes import OracleDrafter
from tests.serving import GREEDY, PROMPT, linked

TOKENIZER = TargetTokenizer((model_path("tiny") / "tokenizer.json").read_bytes())


class OracleFactory(DrafterFactory):
    """Each of its drafters guesses four tokens of five right, not all of them the same."""

    name = "oracle"

    def __init__(self):
        self.created = 0

    def create(self):
        self.created += 1
        return OracleDrafter(0.8, self.created)


@asynccontextmanager
async def device_on(address, parallel=1, token="", **options):
    async with linked(address, token=token, **options) as link:
        device = Device(link, await link.describe(), TOKENIZER, OracleFactory(), FixedLength(4), parallel)
        try:
            yield device
        finally:
            await device.close()


async def read(device, task=Task(PROMPT, GREEDY)):
    async with aclosing(device.answer(task)) as chunks:
        return [chunk async for chunk in chunks]
