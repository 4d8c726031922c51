"""Words that several kinds of questions draw from."""

NAMES = (
    "Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack", "Karen", "Leo", "Maria", "Nora",
    "Oscar", "Paul", "Rosa", "Sam", "Tina", "Victor",
)  # fmt: skip
THINGS = (
    "apples", "books", "coins", "cards", "stamps", "eggs", "pencils", "marbles", "shells", "stickers", "cups", "plates",
)  # fmt: skip
CITIES = (
    "Berlin", "Paris", "London", "Madrid", "Rome", "Oslo", "Vienna", "Lisbon", "Dublin", "Athens", "Prague", "Warsaw",
)  # fmt: skip
JOBS = ("teacher", "doctor", "farmer", "nurse", "baker", "pilot", "lawyer", "painter", "cook", "driver")
ANIMALS = ("dog", "cat", "horse", "bird", "fish", "rabbit", "turtle", "goat", "sheep", "duck")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "purple", "orange", "pink")
EVENTS = (
    "party",
    "concert",
    "wedding",
    "dinner",
    "workshop",
    "lecture",
    "festival",
    "barbecue",
    "game",
    "play",
)
