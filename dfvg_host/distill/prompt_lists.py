"""Word lists that the training prompts are put together from (see `prompts`)."""

from __future__ import annotations

__all__ = ["CONCEPTS", "OPENINGS", "PLACES", "PROGRAMS", "STYLES", "SUBJECTS", "TASKS", "THINGS"]

CONCEPTS = """
photosynthesis; gravity; inflation; the water cycle; plate tectonics; natural selection; black
holes; supply and demand; machine learning; electricity; the immune system; democracy; the speed
of light; magnetism; compound interest; the greenhouse effect; DNA; the Roman Empire; the
Industrial Revolution; the French Revolution; the Renaissance; the Cold War; quantum mechanics;
relativity; evaporation; friction; probability; prime numbers; fractions; the Pythagorean theorem;
calculus; statistics; algorithms; recursion; encryption; the internet; cloud computing; databases
in general; blockchain; neural networks; operating systems; computer memory; open source software;
version control; volcanoes; earthquakes; hurricanes; tides; the seasons; the solar system; comets;
galaxies; stars; the Moon; dinosaurs; fossils; bees and pollination; migration of birds; coral
reefs; rainforests; deserts; the ozone layer; recycling; renewable energy; solar panels; wind
turbines; nuclear power; batteries; electric motors; steam engines; airplanes; bridges;
satellites; telescopes; microscopes; vaccines; antibiotics; digestion; the heart; the brain;
sleep; memory; stress; vitamins; metabolism; genetics; stem cells; bacteria; viruses; ecosystems;
food chains; biodiversity; climate change; globalization; free trade; taxation; central banks; the
stock market; insurance; budgeting; credit; human rights; the separation of powers; federalism;
elections; constitutions; freedom of the press; ethics; stoicism; existentialism; utilitarianism;
logic; critical thinking; cognitive bias; empathy; motivation; habits; leadership; teamwork;
negotiation; time management; creativity; feedback; opera; jazz; impressionism; cubism;
photography; architecture; sculpture; poetry; the novel; theater; mythology; Buddhism; Hinduism;
Islam; Christianity; Judaism; ancient Egypt; ancient Greece; the Silk Road; the Black Death; the
printing press; World War I; World War II; the space race; the Great Depression; apprenticeships;
online learning; universities; libraries; museums; languages; writing systems; mathematics; acids
and bases; the periodic table; chemical reactions; states of matter; atoms; molecules; crystals;
sound waves; light; color; heat; pressure; density; buoyancy; momentum; energy; entropy; lasers;
radar; GPS; radio; television; smartphones; search engines; social media; video games; artificial
intelligence; robotics; 3D printing; self-driving cars; virtual reality; cybersecurity; privacy;
digital currencies
"""

SUBJECTS = """
history; science; mathematics; art; music; literature; philosophy; psychology; biology; chemistry;
physics; astronomy; geography; economics; politics; law; medicine; engineering; computer science;
education; sports; agriculture; architecture; religion; technology; business; language; the
environment; transport; energy
"""

THINGS = """
a library; a small garden; a bicycle; a river; an old clock; a lighthouse; a robot; a dog; a cat;
a teacher; a farmer; a scientist; a sailor; a painter; a musician; a young inventor; a lost
letter; a storm; a forest; a mountain village; a city at night; a train station; a school; a
museum; a market; a bridge; a castle; a desert; an island; a spaceship; a mysterious door; a
broken mirror; a wise grandmother; a shy boy; a brave girl; a retired detective; a talking tree; a
snowy winter; a hot summer day; a new neighbor; an unexpected gift; a secret map; a violin; a
paper boat; a shadow; a dragon; a kind stranger; a long road; a forgotten song; a blue stone; a
hidden valley; a tired doctor; a lonely king
"""

TASKS = """
save money; learn a new language; improve concentration; sleep better; read more books; organize a
desk; grow tomatoes; take better photographs; learn to play the guitar; remember names; speak in
public; write clearly; manage time; reduce waste at home; save energy at home; clean a keyboard;
fix a flat tire; paint a wall; remove a stain; train a puppy; care for houseplants; start a blog;
build a website; learn programming; back up a computer; choose a laptop; protect a password; study
for an exam; take notes; write an essay; give feedback; resolve a conflict; make new friends; deal
with stress; break a bad habit; set goals; work from home; lead a team; run a small business;
price a service; find customers; understand a contract; read a map; sew a button; knit a scarf;
build a birdhouse; repair a chair; sharpen a knife; start a compost heap; collect rainwater; raise
chickens; keep bees; draw a face; mix colors; write a story; name a character
"""

PLACES = """
France; Japan; Brazil; Egypt; India; China; Kenya; Canada; Australia; Mexico; Italy; Spain;
Germany; Norway; Greece; Turkey; Russia; Peru; Argentina; Nigeria; South Africa; Morocco; Iran;
Thailand; Vietnam; Indonesia; New Zealand; Iceland; Ireland; Scotland; Poland; Switzerland; the
Netherlands; Portugal; Chile; Cuba; Ethiopia; Nepal; Mongolia; South Korea; California; Texas;
Alaska; New York; London; Paris; Rome; Athens; Cairo; Tokyo; Beijing; Sydney; Moscow; Istanbul;
Berlin; Vienna
"""

PROGRAMS = """
reverses a string; checks whether a number is prime; computes the factorial of a number; sorts a
list of numbers; finds the largest element of a list; counts the words of a text; removes
duplicates from a list; merges two sorted lists; computes Fibonacci numbers; checks whether a word
is a palindrome; converts Celsius to Fahrenheit; reads a CSV file; writes a list to a file; counts
vowels; computes the average of a list; finds the greatest common divisor; flattens a nested list;
searches a sorted list; transposes a matrix; multiplies two matrices; generates random passwords;
parses a date; prints a pyramid of stars; simulates a dice roll; checks balanced brackets;
implements a stack; implements a queue; implements a linked list; implements a binary tree; counts
letters with a dictionary; finds anagrams; converts a number to binary; sums the digits of a
number; finds common elements of two lists; rotates a list; capitalizes each word; splits a list
into chunks; measures elapsed time; downloads a web page; plots a line chart
"""

STYLES = (
    "",
    "",
    "",
    "",
    "",
    " Keep it short.",
    " Answer in one paragraph.",
    " Use simple words.",
    " Give an example.",
    " Explain step by step.",
    " Use bullet points.",
    " Be precise.",
    " Write for a beginner.",
    " Write for an expert.",
    " Answer in three sentences.",
    " Explain it to a child.",
    " Give three reasons.",
    " Include a short summary.",
)

OPENINGS = """
The history of {concept} begins with; {concept} is one of the most important ideas in; In recent
years, {concept} has become; Many people believe that {concept}; The main difference between
{concept} and {concept2} is; Scientists who study {concept} have found; Once upon a time, there
was {thing} that; It was a quiet morning when {thing}; She looked at {thing} and; Nobody in the
village knew why {thing}; {place} is a country known for; The climate of {place} is; The people of
{place} have; In {place}, the economy depends on; The best way to {task} is; If you want to
{task}, first; There are several steps to {task}:; To understand {concept}, we need to; Chapter 1:
Introduction to {concept}; # {concept}: an overview; The study of {subject} can be divided into; A
course on {subject} usually; Question: What is {concept}? Answer:; Here is a Python function that
{program}:; In this article, we will look at {concept}.; The relationship between {concept} and
{subject} is; One of the earliest examples of {concept} was; When I was young, my father told me
about {thing}; Experts in {subject} agree that; The following list describes {concept}:; Let us
consider {concept} in more detail.; According to historians, {place}
"""
