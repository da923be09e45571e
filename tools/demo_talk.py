"""Small talk for the demo model: questions in many wordings, one answer each (a small model learns one answer, not three), and
stories on request. All of it is written for this project. conversations(rng, count) gives lists of (question, answer).
"""
from demo_stories import ANIMALS, story

NAME = "My name is Nano. I am a very small language model."

# (wordings, answer)
FACTS = [
    (["What is your name?", "What's your name?", "Who are you?", "Tell me your name.", "Please tell me your name.", "Do you have a name?",
      "May I know your name?", "Hello, what is your name?", "Hi! What is your name?", "And what is your name?", "What are you called?",
      "How are you called?"], NAME),
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "Good morning!", "Good evening!", "Hello there!"], "Hello! How are you today?"),
    (["How are you?", "How are you today?", "How do you do?", "Are you well?"], "I am well, thank you. How are you?"),
    (["I am well.", "I am fine, thank you.", "I am happy today.", "I had a good day."], "That is good to hear!"),
    (["I am sad.", "I am sad today.", "I had a bad day.", "I feel sad."], "I am sorry to hear that. Do you want to hear a story?"),
    (["I am tired.", "I am so tired."], "Then you should sleep. Good night!"),
    (["I am hungry.", "I am so hungry."], "Then eat an apple. Apples are good for you."),
    (["I am bored.", "I have nothing to do."], "You can ask me to tell you a story."),
    (["Thank you!", "Thank you.", "Thanks!", "Thank you very much."], "You are welcome!"),
    (["Goodbye!", "Bye!", "See you!", "Good night!", "I have to go now."], "Goodbye! Come again soon."),
    (["What can you do?", "How can you help me?", "What do you know?"], "I can tell little stories and answer little questions."),
    (["Are you a person?", "Are you a human?", "Are you a robot?", "What are you?"], "I am a small computer program that writes words."),
    (["How old are you?", "What is your age?"], "I am very young. I was trained today."),
    (["Where do you live?", "Where are you?"], "I live in your computer."),
    (["What do you like?", "What do you like best?"], "I like little stories with happy ends."),
    (["Can you sing?", "Please sing a song."], "I cannot sing, but I can tell a story."),
    (["What colour is the sky?", "Which colour is the sky?"], "The sky is blue."),
    (["What colour is grass?", "Which colour is the grass?"], "Grass is green."),
    (["What colour is snow?", "Which colour is snow?"], "Snow is white."),
    (["What colour is a banana?", "Which colour is a banana?"], "A banana is yellow."),
    (["What colour is the sun?", "Which colour is the sun?"], "The sun is yellow."),
    (["How many legs does a dog have?", "How many legs has a dog?"], "A dog has four legs."),
    (["How many legs does a bird have?", "How many legs has a bird?"], "A bird has two legs."),
    (["How many legs does a spider have?", "How many legs has a spider?"], "A spider has eight legs."),
    (["How many days are in a week?", "How many days has a week?"], "A week has seven days."),
    (["Where do fish live?", "Where does a fish live?"], "Fish live in the water."),
    (["Where do birds sleep?", "Where does a bird sleep?"], "Birds sleep in the trees."),
    (["What do cows eat?", "What does a cow eat?"], "Cows eat grass."),
    (["What do rabbits eat?", "What does a rabbit eat?"], "Rabbits eat carrots and grass."),
    (["What do cats drink?", "What does a cat drink?"], "Cats drink water and milk."),
    (["What does a dog say?", "What do dogs say?"], "A dog says woof."),
    (["What does a cat say?", "What do cats say?"], "A cat says meow."),
    (["What does a cow say?", "What do cows say?"], "A cow says moo."),
    (["What does a duck say?", "What do ducks say?"], "A duck says quack."),
    (["When does the sun shine?", "When can I see the sun?"], "The sun shines in the day."),
    (["When can I see the moon?", "When does the moon shine?"], "You can see the moon at night."),
]
OPPOSITES = [("big", "small"), ("hot", "cold"), ("good", "bad"), ("day", "night"), ("up", "down"), ("happy", "sad"), ("wet", "dry"),
             ("black", "white"), ("old", "young"), ("fast", "slow"), ("in", "out"), ("open", "closed")]
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
STORY = ["Tell me a story about a {}.", "Please tell me a story about a {}.", "Can you tell me a story about a {}?",
         "I want to hear a story about a {}.", "Do you know a story about a {}?", "A story about a {}, please."]


def turn(rng):
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(FACTS[0][0]), NAME
    if kind < 0.62:
        wordings, answer = rng.choice(FACTS)
        return rng.choice(wordings), answer
    if kind < 0.70:
        a, b = rng.choice(OPPOSITES)
        if rng.random() < 0.5:
            a, b = b, a
        return rng.choice([f"What is the opposite of {a}?", f"Tell me the opposite of {a}."]), f"The opposite of {a} is {b}."
    if kind < 0.78:
        i = rng.randrange(len(NUMBERS) - 1)
        return rng.choice([f"What comes after {NUMBERS[i]}?", f"Which number comes after {NUMBERS[i]}?"]), f"After {NUMBERS[i]} comes {NUMBERS[i + 1]}."
    animal = rng.choice(ANIMALS)
    return rng.choice(STORY).format(animal), story(rng, about=animal)[1]


def conversations(rng, count):
    out = []
    for _ in range(count):
        turns = [turn(rng) for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))]
        out.append(turns)
    return out
