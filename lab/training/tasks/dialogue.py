"""Conversations of several turns: the last reply must remember what was said at the start."""

import random

from ..item import Item, Task
from ..text_grammar import Rules, expand, pick, sentences

SHARED = {
    "name": ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jonas", "Lena", "Max"),
    "hello": ("Hello {name}!", "Hi {name}, nice to meet you.", "Welcome, {name}.", "Good to see you, {name}!"),
    "because": ("It is {good} and {good}.", "People say it is {good}.", "You will like it, it is {good}.", "I think it is {good}."),
    "more": ("Shall I tell you more, {name}?", "Does that sound good, {name}?", "Anything else, {name}?", "What do you think?"),
    "agree": ("That sounds good. {question}", "Great idea! {question}", "Hmm, maybe. {question}", "Thanks. {question}"),
}  # fmt: skip
TRAVEL = {
    "wish": ("a trip to {where}", "a weekend in {where}", "a holiday in {where}", "a week in {where}"),
    "where": ("Italy", "Norway", "the Alps", "Scotland", "Japan", "a big city", "Greece", "the north", "Portugal"),
    "first": ("For {where} I would take {vehicle}.", "In {where} you should see {sight}.", "Then go to {where} in {month}.",
              "{where} is a good choice, above all {sight}."),
    "vehicle": ("the night train", "a small car", "a bicycle", "the ferry", "a comfortable bus"),
    "sight": ("the old harbor", "the museums", "the high mountains", "the local food", "the quiet villages", "the festivals"),
    "month": ("May", "June", "September", "October", "early spring"),
    "question": ("What should I take along?", "What should I pack?", "What do I need?"),
    "second": ("For {where} you need {pack} and {pack}.", "Take {pack}, and do not forget {pack}.", "I would pack {pack}.",
               "{pack} and {pack} are enough for {where}."),
    "pack": ("good shoes", "a warm jacket", "sunglasses", "a map", "a camera", "an umbrella", "a thick book", "a bottle of water"),
    "good": ("beautiful", "quiet", "cheap", "full of surprises", "easy to reach", "worth the time"),
}  # fmt: skip
FOOD = {
    "wish": ("dinner with {where}", "a meal with {where}", "something with {where}", "lunch with {where}"),
    "where": ("mushrooms", "potatoes", "rice", "fish", "cheese", "tomatoes", "beans", "eggs", "apples"),
    "first": ("With {where} I would make {dish}.", "How about {dish} with {where}?", "You could cook {dish}, {where} fit well.",
              "I suggest {dish} with {where} and {extra}."),
    "dish": ("a soup", "a curry", "a gratin", "a salad", "dumplings", "a pie", "a stew"),
    "extra": ("garlic", "fresh herbs", "lemon", "onions", "pepper", "cream"),
    "question": ("What should I buy?", "What do I need for it?", "What else do I need?"),
    "second": ("Besides {where} you need {extra} and {extra}.", "Buy {extra}, {extra} and of course {where}.",
               "Only {extra} and some {where}.", "{where}, {extra} and a little oil."),
    "good": ("healthy", "cheap", "quick", "delicious", "easy to cook", "good for guests"),
}  # fmt: skip
BOOKS = {
    "wish": ("a book about {where}", "a novel about {where}", "something to read about {where}", "a story about {where}"),
    "where": ("pirates", "space", "friendship", "detectives", "animals", "history", "music", "the sea", "robots"),
    "first": ("About {where} I would read {book}.", "If you like {where}, try {book}.", "There is {book} about {where}.",
              "My favorite about {where} is {book}."),
    "book": ("a classic from the library", "a thin book with pictures", "a new novel", "a collection of short stories",
             "a comic", "an old diary"),
    "question": ("When should I read it?", "Where should I read it?", "How long will it take?"),
    "second": ("You can read about {where} {reading}.", "I would do it {reading}.", "Best {reading}, with {drink}.",
               "With {drink} and {reading}, {name}."),
    "reading": ("in the evening", "on the train", "on a long weekend", "in the garden", "before you sleep", "chapter by chapter"),
    "drink": ("a cup of tea", "hot chocolate", "a glass of milk", "some cookies", "coffee"),
    "good": ("funny", "exciting", "short", "thoughtful", "hard to put down", "easy to read"),
}  # fmt: skip
OPENERS = (
    "Hi, I am {name}. I am looking for {wish}.", "My name is {name} and I would like {wish}.", "I want {wish}. By the way, I am {name}.",
    "{name} here. Can you help me plan {wish}?", "Hello, {name} speaking. What do you suggest for {wish}?",
)  # fmt: skip
# Slots of the sentences of the first reply, and of the second
FIRST = (("hello", "first", "because"), ("hello", "first", "more"), ("first", "because", "more"))
SECOND = (("second", "because"), ("second", "more"), ("second", "because", "more"))
TOPICS: tuple[Rules, ...] = (TRAVEL, FOOD, BOOKS)


def draw(rng: random.Random) -> Item:
    """One turn or two; with two, the item asks for the second and the key is the opener of the conversation."""
    topic = rng.choice(TOPICS)
    rules = {**SHARED, **topic}
    bound = {"name": rng.choice(SHARED["name"]), "where": rng.choice(topic["where"])}
    opener = expand(rng, rules, pick(rng, OPENERS), bound)
    first = sentences(rng, rules, pick(rng, FIRST), bound)
    if rng.random() < 0.4:
        return Item("dialogue", opener, first)
    text = sentences(rng, rules, ("agree",), bound)
    second = sentences(rng, rules, pick(rng, SECOND), bound)
    return Item("dialogue", text, second, history=(("user", opener), ("assistant", first)), key=opener)


TASK = Task("dialogue", draw, share=1.0)
