"""Little stories in little words, put together from parts: what a model of two million parameters can learn in minutes.

Every story has a hero, a place, something that goes wrong, a helper and a good end. The parts and their sentences are written
for this project. story(rng, about=None) gives (title, text); `about` names an animal that has to be the hero.
"""

CHILDREN = [("Tom", "he", "him", "his"), ("Anna", "she", "her", "her"), ("Ben", "he", "him", "his"), ("Lily", "she", "her", "her"),
            ("Sam", "he", "him", "his"), ("Mia", "she", "her", "her"), ("Max", "he", "him", "his"), ("Zoe", "she", "her", "her"),
            ("Leo", "he", "him", "his"), ("Rose", "she", "her", "her")]
ANIMALS = ["cat", "dog", "bird", "rabbit", "mouse", "frog", "duck", "horse", "bear", "fox", "hen", "goat"]
SIZES = ["little", "small", "big", "young"]
MOODS = ["happy", "kind", "brave", "shy", "clever", "quiet", "funny"]
COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown"]
THINGS = ["ball", "hat", "book", "kite", "cup", "bag", "boat", "drum", "shoe", "bell"]
FOODS = ["apple", "cake", "carrot", "banana", "egg", "fish", "nut", "bun"]
PLACES = [("in the garden", "the garden"), ("by the river", "the river"), ("in the forest", "the forest"), ("on the farm", "the farm"),
          ("near the lake", "the lake"), ("on the hill", "the hill"), ("in the park", "the park"), ("by the sea", "the sea")]
TIMES = ["One day", "One morning", "One sunny day", "One evening", "One cold day"]
ENDS = ["They were friends from that day on.", "From that day on they played together every day.", "And they were all happy.",
        "Then they went home and slept well.", "It was a good day.", "They laughed and laughed.", "That night everybody slept well."]
THANKS = ['"Thank you!" said {a}. "You are a good friend."', '"Thank you very much," said {a}.', '{A} was so happy that {he} jumped up and down.']


def an(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def hero(rng, about):
    """(first mention, later name, he, him, his, word of the title)"""
    if about is None and rng.random() < 0.5:
        name, he, him, his = rng.choice(CHILDREN)
        kind = "boy" if he == "he" else "girl"
        return f"{an(rng.choice(SIZES[:2] + MOODS[:5]))} {kind} called {name}", name, he, him, his, name
    animal = about or rng.choice(ANIMALS)
    he, him, his = rng.choice([("he", "him", "his"), ("she", "her", "her")])
    return f"{an(rng.choice(SIZES + MOODS + COLOURS[4:]))} {animal}", f"the {animal}", he, him, his, f"the {animal}"


def lost_thing(rng, w):
    w["title"] = "{T} and the {colour} {thing}"
    return [rng.choice(["{A} had {a_colour} {thing}.", "{A} loved {his} {colour} {thing}."]),
            rng.choice(["{TIME} {he} could not find it.", "{TIME} the {thing} was gone."]),
            rng.choice(["{He} looked under the bed. {He} looked behind the door. The {thing} was not there.",
                        "{He} looked here and {he} looked there, but {he} could not see it."]),
            rng.choice(["{He} sat down and cried.", "{He} was very sad."]),
            rng.choice(['Then {b} came. "Why are you sad?" asked {b}.', '"What is wrong?" asked {b}.']),
            rng.choice(['"I have lost my {colour} {thing}," said {a}.', '"My {thing} is gone," said {a}.']),
            rng.choice(['"I will help you," said {b}.', '"Let us look for it together," said {b}.']),
            rng.choice(["They went to {place} and there it was!", "They looked {at_place}. There was the {thing}, under a tree!"]),
            rng.choice(THANKS)]


def hungry(rng, w):
    w["title"] = "The hungry {hero}"
    return [rng.choice(["{TIME} {a} was very hungry.", "{TIME} {a} had nothing to eat."]),
            rng.choice(["{He} went to {place} to look for food.", "{He} looked for food {at_place}."]),
            rng.choice(["{He} saw {b}. {B} had {a_food}.", "There {he} met {b}, who had {a_food}."]),
            rng.choice(['"May I have some?" asked {a}.', '"I am so hungry," said {a}.']),
            rng.choice(['"Yes," said {b}. "We can share."', '"Here you are," said {b}. "Half for you and half for me."']),
            rng.choice(["They sat down and ate together.", "So they shared the {food}. It was very good."]),
            rng.choice(THANKS)]


def rain(rng, w):
    w["title"] = "{T} in the rain"
    return [rng.choice(["{TIME} {a} went for a walk {at_place}.", "{TIME} {a} was playing {at_place}."]),
            rng.choice(["Soon it began to rain. The rain fell and fell.", "The sky was dark. Then it began to rain."]),
            rng.choice(["{A} was wet and cold.", '"I am wet and I am cold," said {a}.']),
            rng.choice(["{B} looked out of {b_his} house.", "{B} saw {him} from the window."]),
            rng.choice(['"Come in!" said {b}. "It is warm in here."', '"Come into my house," said {b}. "You can sit by the fire."']),
            rng.choice(["They drank warm milk and told stories.", "They sat by the fire and sang a song."]),
            rng.choice(["When the rain stopped, the sun came out.", "After the rain they saw many colours in the sky."]),
            rng.choice(THANKS)]


def new_friend(rng, w):
    w["title"] = "A friend for {t}"
    return [rng.choice(["{A} had no friends.", "{A} wanted a friend to play with."]),
            rng.choice(["{TIME} {he} went to {place}.", "{TIME} {he} sat alone {at_place}."]),
            rng.choice(["There was {b}, all alone.", "There {he} saw {b}."]),
            rng.choice(['"Hello," said {a}. "Do you want to play?"', '"Will you play with me?" asked {a}.']),
            rng.choice(['"Yes!" said {b}. "I have {a_colour} {thing}."', '"I would like that," said {b}.']),
            rng.choice(["They ran and jumped and played all day.", "They played until the sun went down."]),
            rng.choice(['"Will you come again?" asked {b}. "Yes, I will," said {a}.', '"I will come again," said {a}.'])]


def tall_tree(rng, w):
    w["title"] = "{T} and the tall tree"
    return [rng.choice(["There was a tall tree {at_place}.", "A very tall tree stood {at_place}."]),
            rng.choice(["{TIME} {a} saw {a_colour} {thing} at the top of the tree.", "{TIME} the {colour} {thing} of {a} was stuck in the tree."]),
            rng.choice(['"The tree is too tall for me," said {a}.', "{A} jumped, but {he} could not get it."]),
            rng.choice(['{B} said, "Stand on my back."', '"I am tall," said {b}. "I can help."']),
            rng.choice(["{A} went up, up, up. Then {he} had the {thing}!", "Together they got the {thing} down."]),
            rng.choice(['"We did it!" they said.', '"Two can do what one cannot," said {b}.'])]


def dark_night(rng, w):
    w["title"] = "{T} is not afraid"
    return [rng.choice(["{A} was afraid of the dark.", "At night {a} was always afraid."]),
            rng.choice(["One night {he} heard a noise.", "One night there was a noise at the door."]),
            rng.choice(['"Who is there?" asked {a}.', '"Is it a lion?" {a} thought.']),
            rng.choice(["But it was only {b}.", "{He} opened the door. It was {b}!"]),
            rng.choice(['"I am afraid, too," said {b}. "Let us look at the stars."', '"Look," said {b}. "The moon is big and the stars are bright."']),
            rng.choice(["They sat and looked at the moon.", "They looked at the stars until they were tired."]),
            rng.choice(["{A} was not afraid any more.", '"The night is beautiful," said {a}.'])]


def birthday(rng, w):
    w["title"] = "The birthday of {t}"
    return [rng.choice(["It was the birthday of {a}.", "{TIME} it was the birthday of {a}."]),
            rng.choice(["But nobody came. {He} was sad.", "{He} waited and waited, but nobody came."]),
            rng.choice(["Then {he} heard a song.", "Then somebody knocked at the door."]),
            rng.choice(["It was {b} with {a_food} and {a_colour} {thing}.", "There stood {b} with {a_colour} {thing}."]),
            rng.choice(['"This is for you," said {b}. "Happy birthday!"', '"Happy birthday!" said {b}.']),
            rng.choice(["They ate the {food} and danced.", "They sang and danced and ate."]),
            rng.choice(THANKS)]


def big_river(rng, w):
    w["title"] = "{T} and the river"
    return [rng.choice(["{A} wanted to go over the river.", "{TIME} {a} came to a wide river."]),
            rng.choice(["But the water was deep and {he} could not swim.", '"The water is too deep," said {a}.']),
            rng.choice(["{B} had a little boat.", "Then {b} came in a {colour} boat."]),
            rng.choice(['"Sit in my boat," said {b}.', '"Come with me," said {b}.']),
            rng.choice(["They went over the water, slowly, slowly.", "The boat went up and down, up and down."]),
            rng.choice(["Soon they were on the other side.", "At last they came to the other side."]),
            rng.choice(THANKS)]


PLOTS = [lost_thing, hungry, rain, new_friend, tall_tree, dark_night, birthday, big_river]


def upper_first(text):
    return text[0].upper() + text[1:]


def story(rng, about=None):
    first, name, he, him, his, title_name = hero(rng, about)
    other = rng.choice([a for a in ANIMALS if f"the {a}" != name])
    at_place, place = rng.choice(PLACES)
    colour, thing, food = rng.choice(COLOURS), rng.choice(THINGS), rng.choice(FOODS)
    words = dict(a=name, A=upper_first(name), he=he, He=upper_first(he), him=him, his=his, b=f"the {other}", B=f"The {other}",
                 b_his=rng.choice(["his", "her"]), at_place=at_place, place=place, colour=colour, a_colour=an(colour), thing=thing,
                 food=food, a_food=an(food), TIME=rng.choice(TIMES), t=title_name, T=upper_first(title_name),
                 hero=title_name.removeprefix("the "))
    begin = rng.choice(["Once upon a time there was {first}.", "Once there was {first}.", "There once was {first} who lived {at_place}."])
    sentences = [begin.replace("{first}", first)] + rng.choice(PLOTS)(rng, words) + [rng.choice(ENDS)]
    title = upper_first(words["title"].format(**words))
    return title, " ".join(s.format(**words) for s in sentences)
