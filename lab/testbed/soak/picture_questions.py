"""What a target that sees is asked: drawn scenes with their questions, every other one greedy."""

import base64
import random
from io import BytesIO

from lab.testbed.soak.questions import LONGEST, Question
from lab.training.vision.scenes import Scene, draw

TARGET, DRAFT = "tiny-vision", "tiny-vision-draft"


def picture_questions(count: int, seed: int) -> list[Question]:
    """Questions about scenes; the third of each three is about the scene before it, so that a picture is sent twice."""
    rng, found = random.Random(seed), list[Question]()
    scene = draw(rng, "heldout")
    for number in range(count):
        scene = scene if number % 3 == 2 else draw(rng, "heldout")
        sampling = {"temperature": 0.8, "seed": seed + number} if number % 2 else {"temperature": 0}
        question = rng.choice(scene.questions).text
        content = [_part(scene), {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        found.append(Question({"model": TARGET, "messages": messages, "max_tokens": LONGEST, **sampling}))
    return found


def _part(scene: Scene) -> dict[str, object]:
    file = BytesIO()
    scene.image.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
