"""About 300 plain facts, and honest answers about what is not among them."""

from .task import article, asked

CAPITALS = """France:Paris|Italy:Rome|Spain:Madrid|Germany:Berlin|Portugal:Lisbon|Austria:Vienna|Poland:Warsaw|
Greece:Athens|Sweden:Stockholm|Norway:Oslo|Finland:Helsinki|Denmark:Copenhagen|Iceland:Reykjavik|
Ireland:Dublin|England:London|Scotland:Edinburgh|Belgium:Brussels|the Netherlands:Amsterdam|
Switzerland:Bern|Hungary:Budapest|Romania:Bucharest|Bulgaria:Sofia|Croatia:Zagreb|Serbia:Belgrade|
Slovenia:Ljubljana|Slovakia:Bratislava|Czechia:Prague|Estonia:Tallinn|Latvia:Riga|Lithuania:Vilnius|
Ukraine:Kyiv|Turkey:Ankara|Russia:Moscow|Egypt:Cairo|Morocco:Rabat|Algeria:Algiers|Tunisia:Tunis|
Kenya:Nairobi|Ethiopia:Addis Ababa|Ghana:Accra|Senegal:Dakar|Nigeria:Abuja|Uganda:Kampala|
Japan:Tokyo|China:Beijing|India:New Delhi|South Korea:Seoul|Thailand:Bangkok|Vietnam:Hanoi|
Indonesia:Jakarta|the Philippines:Manila|Malaysia:Kuala Lumpur|Nepal:Kathmandu|Iran:Tehran|
Iraq:Baghdad|Israel:Jerusalem|Jordan:Amman|Lebanon:Beirut|Qatar:Doha|Oman:Muscat|Mongolia:Ulaanbaatar|
Canada:Ottawa|the United States:Washington|Mexico:Mexico City|Cuba:Havana|Jamaica:Kingston|
Brazil:Brasilia|Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|Colombia:Bogota|Ecuador:Quito|
Uruguay:Montevideo|Paraguay:Asuncion|Venezuela:Caracas|Australia:Canberra|New Zealand:Wellington"""

OPPOSITES = """hot:cold|big:small|up:down|left:right|black:white|day:night|good:bad|fast:slow|high:low|
long:short|hard:soft|heavy:light|old:young|rich:poor|open:closed|full:empty|early:late|loud:quiet|
wet:dry|clean:dirty|strong:weak|happy:sad|true:false|first:last|inside:outside|begin:end|buy:sell|
love:hate|win:lose|push:pull|give:take|ask:answer|come:go|near:far|thick:thin|wide:narrow|deep:shallow|
sweet:bitter|bright:dark|always:never|everything:nothing|easy:difficult|cheap:expensive|
friend:enemy|war:peace|summer:winter|north:south|east:west|before:after|above:below|rough:smooth|
tall:short|new:old|safe:dangerous|sharp:blunt|asleep:awake"""

COLOURS = """grass:green|snow:white|coal:black|blood:red|a ripe banana:yellow|the sky on a clear day:blue|
a lemon:yellow|milk:white|chocolate:brown|a ripe tomato:red|an orange:orange|a carrot:orange|
a cloudy sky:grey|an elephant:grey|a flamingo:pink|a raven:black|a frog:green|an aubergine:purple|
a strawberry:red|salt:white|gold:yellow|a cucumber:green"""

UNITS = """seconds:a minute:60|minutes:an hour:60|hours:a day:24|days:a week:7|days:a year:365|
months:a year:12|weeks:a year:52|years:a century:100|years:a decade:10|metres:a kilometre:1000|
centimetres:a metre:100|millimetres:a centimetre:10|millimetres:a metre:1000|grams:a kilogram:1000|
kilograms:a tonne:1000|millilitres:a litre:1000|bytes:a kilobyte:1000|bits:a byte:8|items:a dozen:12|
cents:a euro:100|inches:a foot:12|feet:a yard:3|degrees:a circle:360|letters:the English alphabet:26|
players:a football team:11|strings:a violin:4|strings:a guitar:6|legs:a spider's body:8|days:April:30|
days:June:30|days:July:31|days:January:31|days:December:31|keys:a piano:88"""

YOUNG = """dog:puppy|cat:kitten|cow:calf|horse:foal|sheep:lamb|goat:kid|pig:piglet|duck:duckling|
hen:chick|goose:gosling|swan:cygnet|bear:cub|lion:cub|deer:fawn|kangaroo:joey|frog:tadpole|
owl:owlet|rabbit:bunny"""

SOUNDS = """dog:barks|cat:meows|cow:moos|horse:neighs|sheep:bleats|pig:grunts|duck:quacks|lion:roars|
snake:hisses|bee:buzzes|owl:hoots|frog:croaks|wolf:howls|rooster:crows"""

LEGS = "dog:4|cat:4|horse:4|spider:8|ant:6|bee:6|bird:2|snake:0|frog:4|octopus:8 arms and no|human:2"

SYMBOLS = """hydrogen:H|oxygen:O|carbon:C|nitrogen:N|iron:Fe|gold:Au|silver:Ag|copper:Cu|helium:He|
sodium:Na|lead:Pb|tin:Sn|zinc:Zn|calcium:Ca|neon:Ne"""

LANGUAGES = """France:French|Germany:German|Italy:Italian|Spain:Spanish|Japan:Japanese|China:Chinese|
Brazil:Portuguese|Mexico:Spanish|Austria:German|Russia:Russian|Poland:Polish|Greece:Greek|Egypt:Arabic|
Sweden:Swedish|Turkey:Turkish|England:English|Argentina:Spanish|Denmark:Danish"""

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November "
          "December").split()

SINGLE = """Which planet do we live on?=We live on the planet Earth.
Which planet is closest to the sun?=Mercury is closest to the sun.
Which planet is the largest?=Jupiter is the largest planet.
How many planets are there in the solar system?=There are 8 planets in the solar system.
What goes around the Earth?=The moon goes around the Earth.
What is water made of?=Water is made of hydrogen and oxygen.
At what temperature does water boil?=Water boils at 100 degrees Celsius.
At what temperature does water freeze?=Water freezes at 0 degrees Celsius.
What is frozen water called?=Frozen water is called ice.
What is the largest ocean?=The Pacific is the largest ocean.
What is the highest mountain?=Mount Everest is the highest mountain.
What is the largest animal?=The blue whale is the largest animal.
What is the tallest animal?=The giraffe is the tallest animal.
What is the fastest land animal?=The cheetah is the fastest land animal.
What do bees make?=Bees make honey.
What do cows give us?=Cows give us milk.
What do hens lay?=Hens lay eggs.
What do plants need to grow?=Plants need light, water and air to grow.
What do we breathe?=We breathe air.
How many colours does a rainbow have?=A rainbow has 7 colours.
Which colour do you get from blue and yellow?=Blue and yellow make green.
Which colour do you get from red and yellow?=Red and yellow make orange.
Which colour do you get from red and blue?=Red and blue make purple.
Which colour do you get from black and white?=Black and white make grey.
How many sides does a triangle have?=A triangle has 3 sides.
How many sides does a square have?=A square has 4 sides.
How many sides does a hexagon have?=A hexagon has 6 sides.
How many fingers does a hand have?=A hand has 5 fingers.
How many continents are there?=There are 7 continents.
How many seasons are there?=There are 4 seasons.
Which season comes after winter?=Spring comes after winter.
Which season comes after spring?=Summer comes after spring.
Which season comes after summer?=Autumn comes after summer.
Which season comes after autumn?=Winter comes after autumn.
Where does the sun rise?=The sun rises in the east.
Where does the sun set?=The sun sets in the west.
Which month is the shortest?=February is the shortest month.
What is the first letter of the alphabet?=The first letter of the alphabet is A.
What is the last letter of the alphabet?=The last letter of the alphabet is Z.
Who wrote Hamlet?=William Shakespeare wrote Hamlet.
Who painted the Mona Lisa?=Leonardo da Vinci painted the Mona Lisa.
What do you use to cut paper?=You use scissors to cut paper.
What do you use to tell the time?=You use a clock to tell the time."""


def build():
    """All facts: (questions, full answer, the answer in a word or two)."""
    table = []
    for country, city in rows(CAPITALS):
        table.append(((f"What is the capital of {country}?", f"Which city is the capital of {country}?",
                       f"Name the capital of {country}.", f"Tell me the capital of {country}.",
                       f"Capital of {country}?"), f"The capital of {country} is {city}.", city))
    for word, other in rows(OPPOSITES):
        table.append(((f"What is the opposite of {word}?", f"Name the opposite of {word}.",
                       f'What is the opposite of "{word}"?', f"Opposite of {word}?"),
                      f"The opposite of {word} is {other}.", other))
    for thing, colour in rows(COLOURS):
        table.append(((f"What colour is {thing}?", f"Which colour does {thing} have?",
                       f"What is the colour of {thing}?", f"What color is {thing}?"),
                      f"{capital(thing)} is {colour}.", colour))
    for part, whole, count in rows(UNITS):
        table.append(((f"How many {part} are in {whole}?", f"How many {part} are there in {whole}?",
                       f"How many {part} does {whole} have?"), f"There are {count} {part} in {whole}.", count))
    for animal, young in rows(YOUNG):
        table.append(((f"What is a young {animal} called?", f"What do you call a baby {animal}?",
                       f"How is a young {animal} called?"),
                      f"A young {animal} is called {article(young)}.", young))
    for animal, sound in rows(SOUNDS):
        table.append(((f"What sound does {article(animal)} make?",
                       f"What does {article(animal)} do to make a sound?"),
                      capital(f"{article(animal)} {sound}."), sound))
    for animal, legs in rows(LEGS):
        table.append(((f"How many legs does {article(animal)} have?",
                       f"How many legs has {article(animal)}?"),
                      capital(f"{article(animal)} has {legs} legs."), legs))
    for element, symbol in rows(SYMBOLS):
        table.append(((f"What is the chemical symbol of {element}?", f"Which symbol does {element} have?",
                       f"What is the symbol for {element}?"), f"The chemical symbol of {element} is {symbol}.", symbol))
    for country, language in rows(LANGUAGES):
        table.append(((f"Which language is spoken in {country}?", f"What language do people speak in {country}?"),
                      f"People in {country} speak {language}.", language))
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            table.append(((f"Which {kind} comes after {name}?", f"What {kind} follows {name}?"),
                          f"{after} comes after {name}.", after))
            table.append(((f"Which {kind} comes before {name}?", f"What {kind} is before {name}?"),
                          f"{before} comes before {name}.", before))
    for line in SINGLE.splitlines():
        question, answer = line.split("=")
        table.append(((question,), answer, None))
    return table


def rows(text):
    return [entry.strip().split(":") for entry in text.replace("\n", "").split("|")]


def capital(text):
    return text[0].upper() + text[1:]


FACTS = build()

POLITE = ("{}", "{}", "{}", "{}", "Please tell me: {}", "I have a question. {}", "Do you know this? {}", "Hello! {}",
          "{} Thank you!", "Quick question: {}")
UNKNOWN = "I do not know that. I am a very small model."
BEYOND = (
    "What is the capital of {}?", "Who is the mayor of {}?", "Who invented the {}?", "What is {} made of?",
    "Explain {} to me.", "Why is {} important?", "When was {} founded?", "How far is it to {}?",
    "What happened in {}?", "How does a {} work?", "Tell me about {}.", "What do you think about {}?",
)


def fact(pool):
    questions, answer, _ = pool.rng.choice(FACTS)
    question = pool.rng.choice(POLITE).format(pool.rng.choice(questions))
    return asked("facts", question, answer, f"I know this. {answer}", pool.rng.random() < 0.5)


def unknown(pool):
    question = pool.rng.choice(BEYOND).format(pool.invented().capitalize())
    return asked("unknown", question, UNKNOWN, "I do not know this.", pool.rng.random() < 0.5)
