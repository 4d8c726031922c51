"""Small talk: a greeting, a question or a mood, and a friendly reply in one of many wordings."""

import random

from ..item import Item, Task
from ..text_grammar import expand, sentences

ASKED = {
    "greeting": ("Hello{tail}", "Hi{tail}", "Good morning{tail}", "Good evening{tail}", "Hey there{tail}", "Hi, I am {name}{tail}"),
    "mood": ("How are you{today}?", "How is it going{today}?", "What are you doing{today}?", "Are you well{today}?"),
    "feeling": ("I am {feeling}{today}.", "I feel {feeling}{today}.", "{today_first}I am a bit {feeling}."),
    "thanks": ("Thank you{tail}", "Thanks{tail}", "Thanks for {favor}{tail}", "That was helpful{tail}"),
    "bye": ("Goodbye{tail}", "See you {later}{tail}", "I have to go {later}{tail}", "Bye{tail}"),
    "likes": ("Do you like {thing}?", "What do you think of {thing}?", "I love {thing}.", "Tell me something nice about {thing}."),
    "bored": ("I am bored{today}. What can I do?", "What shall I do {later}?", "Give me an idea for {later}."),
}  # fmt: skip
RULES = {
    "tail": (".", "!", ", my friend.", ", dear helper!", " and welcome.", ", {name} here."),
    "name": ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jonas", "Lena", "Max", "Nora", "Paul"),
    "today": ("", " today", " this morning", " tonight", " right now", " after work", " on this rainy day", " on such a sunny day"),
    "today_first": ("Today ", "Right now ", "This evening ", "Honestly, ", "To be honest, "),
    "feeling": ("tired", "happy", "sad", "nervous", "hungry", "bored", "excited", "lonely", "proud", "cold", "worried"),
    "favor": ("the help", "the answer", "the recipe", "the story", "your time", "listening", "the quick reply"),
    "later": ("later", "tomorrow", "next week", "soon", "this afternoon", "in the evening", "on the weekend"),
    "thing": ("music", "rain", "coffee", "cats", "dogs", "winter", "summer", "old books", "long walks", "trains", "cooking",
              "the sea", "mountains", "chess", "bread", "tea", "puzzles", "gardens"),
    "hello": ("Hello!", "Hi!", "Good to see you!", "Welcome!", "Hello and welcome!", "Nice to meet you!"),
    "offer": ("How can I help you{today}?", "What can I do for you?", "What is on your mind?", "Is there anything you need?"),
    "fine": ("I am fine, thank you.", "I am doing well.", "Everything is running smoothly.", "All is well here.", "Very well, thanks."),
    "back": ("How are you?", "And how are you?", "How is your day?", "What about you?", "What are you up to{today}?"),
    "hear": ("Thank you for telling me.", "I hear you.", "I understand.", "That happens to all of us.", "It is good that you say so."),
    "advice": ("Maybe a {small} {act} would help.", "How about a {small} {act}?", "I would try a {small} {act}.",
               "Take your time and enjoy a {small} {act}."),
    "small": ("short", "quiet", "long", "small", "slow", "nice", "warm"),
    "act": ("walk", "break", "nap", "talk with a friend", "cup of tea", "song", "meal", "game", "bath"),
    "welcome": ("You are welcome!", "My pleasure.", "Any time!", "I am glad it helped.", "No problem at all."),
    "more": ("Just ask if you need more.", "Let me know if there is anything else.", "I am here if you need me.", "Have a nice day!"),
    "farewell": ("Goodbye!", "See you soon!", "Take care!", "Have a good time!", "Until next time!", "Bye, and take care!"),
    "wish": ("Sleep well.", "I hope to hear from you again.", "Have a lovely {part}.", "Come back any time."),
    "part": ("day", "evening", "morning", "week", "afternoon"),
    "opinion": ("I think {thing} can make a day better.", "Yes, {thing} is something many people enjoy.",
                "There is a lot to say about {thing}.", "For me {thing} sounds wonderful.", "I like how {thing} brings people together."),
    "why": ("It gives you time to {rest}.", "It helps many people to {rest}.", "You can {rest} and forget the time.",
            "What do you like most about it?", "Tell me more about it."),
    "rest": ("think", "relax", "dream", "slow down", "breathe", "smile", "be with friends"),
    "idea": ("You could {do}.", "How about this: {do}.", "Maybe you want to {do}.", "Why not {do}?", "I would {do}."),
    "do": ("read a book", "bake a cake", "call an old friend", "go for a walk", "draw a picture", "learn a new song",
           "clean one drawer", "write a letter", "visit a museum", "plant some herbs", "watch the clouds"),
}  # fmt: skip
REPLIES = {
    "greeting": ("hello", "offer"),
    "mood": ("fine", "back"),
    "feeling": ("hear", "advice"),
    "thanks": ("welcome", "more"),
    "bye": ("farewell", "wish"),
    "likes": ("opinion", "why"),
    "bored": ("idea", "idea", "more"),
}


def draw(rng: random.Random) -> Item:
    """What the user named (a thing that the user likes) is bound, so that the reply must copy it."""
    intent = rng.choice(tuple(ASKED))
    bound = {"thing": rng.choice(RULES["thing"]), "name": rng.choice(RULES["name"])}
    text = expand(rng, RULES, rng.choice(ASKED[intent]), bound)
    return Item("small_talk", text, sentences(rng, RULES, REPLIES[intent], bound))


TASK = Task("small_talk", draw, share=1.5)
