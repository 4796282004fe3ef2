"""Names and words that fill the dialogues. Written for this project."""

people = """Ada Alan Amina Anna Anton Aria Arne Ben Bella Boris Bruno Carla Carlos Cem Chen Clara Dana
Daniel David Diego Dora Edgar Elena Eli Emil Emma Erik Eva Fatima Felix Finn Frida Gabriel Georg
Gina Greta Hana Hannah Harald Hugo Ida Igor Ines Ingrid Iris Ivan Jack Jakob Jana Jens Joan Jonas
Jose Julia Kai Karim Karin Kate Kim Klara Lara Lars Laura Lea Leo Lena Liam Lina Lisa Louis Lucia
Lukas Luna Mae Maja Malik Marco Maria Marta Martin Mary Max Mia Mila Mina Mona Nadia Nils Nina Noah
Nora Olga Oliver Omar Oscar Otto Paul Paula Pedro Peter Petra Pia Rafael Ravi Rita Robert Rosa Rose
Ruth Sam Sara Selma Simon Sofia Sonja Stefan Tara Tariq Theo Thomas Tim Tom Toni Tove Uma Ursula
Vera Victor Viola Walter Wanda Wilma Yara Yuki Yusuf Zara Zoe""".split()

cities = """Aachen Accra Algiers Antwerp Athens Bari Basel Bath Belfast Bergen Berlin Bern Bilbao Bonn
Bordeaux Boston Bremen Bristol Cairo Calgary Chicago Cologne Cork Cracow Dakar Dallas Delhi Denver
Dresden Dublin Durban Essen Florence Geneva Genoa Ghent Glasgow Graz Halifax Hamburg Hanoi Helsinki
Houston Kyoto Lagos Leeds Leipzig Lima Lisbon Liverpool London Luxor Lyon Madrid Malmo Manila Miami
Milan Minsk Montreal Mumbai Munich Nairobi Nantes Naples Nice Osaka Oslo Oxford Palermo Paris Perth
Pisa Porto Prague Quebec Quito Rabat Riga Rome Salzburg Seattle Seoul Seville Sofia Sydney Tallinn
Tampa Tokyo Toronto Trieste Tunis Turin Utrecht Valencia Venice Verona Vienna Warsaw York Zagreb
Zurich""".split()

colours = """red blue green yellow black white brown grey orange purple pink silver golden violet
turquoise beige""".split()

objects = """apple arrow ball basket bell bench bicycle bird boat book bottle bowl box bread bridge
brush bucket button cake camera candle card carpet castle chair clock cloud coat coin cup curtain
desk dog door drum egg engine feather fence flag flower fork garden glass glove guitar hammer hat
horse house jacket key kite knife ladder lamp leaf lemon letter map mirror moon mouse mushroom needle
onion oven paper parrot pear pen pencil piano picture pillow pin plate pocket pot potato rabbit radio
ring river road robot roof rope sail saw scarf shell shelf ship shirt shoe spoon star stone stove
table tent ticket tiger tower train tree trumpet umbrella vase violin wagon wall watch wheel whistle
window wolf""".split()

adjectives = """big small old new red quiet loud bright dark warm cold long short heavy light soft
hard clean dusty round flat green wooden broken empty full early late busy calm happy tired young
strange simple narrow wide deep""".split()

past_verbs = """found lost painted carried opened closed bought sold cleaned moved repaired watched
remembered described measured ordered borrowed counted followed wanted liked noticed""".split()

places = """near the harbour|in the old library|behind the school|at the market|under the bridge|in the
garden|on the third floor|by the lake|at the station|in the kitchen|outside the museum|on the hill|in
the village|next to the bakery|along the river|at the end of the road""".replace("\n", " ").split("|")

times = """yesterday|last week|in the morning|before lunch|after the rain|on Sunday|every evening|two
days ago|in spring|late at night|at noon|a year ago|during the storm|on a cold day""".replace(
    "\n", " "
).split("|")

jobs = """baker teacher nurse pilot farmer painter doctor gardener driver cook dentist lawyer singer
writer carpenter engineer plumber librarian photographer waiter tailor judge sailor dancer mechanic
""".split()

pets = "cat dog rabbit parrot hamster turtle goldfish pony lizard snail duck goat".split()

foods = """rice soup pasta cheese salad fish bread pancakes noodles beans potatoes dumplings curry
apples cherries chocolate plums""".split()

languages = """German French Spanish Italian Dutch Polish Greek Turkish Swedish Danish Arabic Hindi
Korean Finnish Czech""".split()

weekdays = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

months = """January February March April May June July August September October November
December""".split()

# What tools act on. The last part of the exam's schemas comes from here as well.
tool_nouns = """table taxi song alarm pizza room flight parcel meeting ticket lamp door heater report
photo poem recipe letter invoice camera printer bike car boat hotel concert film book course doctor
haircut garden pool window curtain oven fridge robot drone playlist podcast reminder timer note task
contact calendar account card loan payment refund gift flower cake coffee tea bread sandwich soup
salad dinner lunch breakfast umbrella jacket shoe shirt dress bag phone laptop charger battery cable
keyboard screen lock key map route bus train ferry tram parking scooter helmet tent kayak ski
backpack insurance passport visa survey vote poll quiz lesson exam diary story picture poster sticker
stamp shelf desk chair sofa carpet mirror bed mattress plant seed tree fence gate bench ladder hammer
""".split()

info_nouns = """weather temperature price traffic news forecast distance time population altitude tide
wind humidity schedule rating score status balance address menu queue delay stock level speed pressure
""".split()

verbs = """book order cancel send create delete open close start stop buy sell rent reserve print scan
pack paint move repair clean check update share save copy rename record play pause deliver return
collect hide show lock unlock prepare schedule review approve reject upload mark
""".split()

info_verbs = "get find fetch read lookup query check show".split()

fields = """name status number price date room seat gate total level size weight owner title count
speed answer colour place distance""".split()

topics = """politics|football|money|the weather|religion|cars|music|cooking|films|computers|travel|
history|animals|space|medicine|fashion|chess|gardening""".replace("\n", "").split("|")

end_words = """over done amen cheers goodbye friend indeed banana ahoy peace always captain roger
sunshine tomato""".split()
