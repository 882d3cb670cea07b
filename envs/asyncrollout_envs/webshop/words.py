"""The words that generated products are made of.

No two attributes of a family, and no two values of an option, are alike in the sense of WebShop's fuzzy matching, and
no other text has an attribute in it: what a goal asks for is what must be bought.
"""

from typing import NamedTuple


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


class Family(NamedTuple):
    """Kinds of products that share their attributes, and are easily taken for one another.

    `kinds` are names with the lowest and highest price in dollars. `traits` stand before such a name, `parts` after a
    "with".
    """

    categories: list[str]
    kinds: dict[str, tuple[int, int]]
    traits: list[str]
    parts: list[str]
    options: dict[str, list[str]]
    uses: list[str]


_COLORS = _split(
    "black, white, navy, gray, olive, burgundy, teal, mustard, lavender, coral, beige, charcoal, pink, brown"
)
_SIZES = _split("small, medium, large, xl, xxl")
_PACKS = _split("single, 6 pack, 12 pack, 30 pack")

FAMILIES = [
    Family(
        _split("Clothing, Shoes, Footwear"),
        {"running shoes": (35, 140), "hiking boots": (55, 190), "walking loafers": (25, 95), "beach sandals": (12, 60)},
        _split("breathable, anti slip, lightweight, shock absorbing, water proof, quick drying, vegan, wide fit"),
        _split("rubber sole, memory foam, arch support, lace closure, reflective trim, steel toe"),
        {"color": _COLORS, "size": _split("6, 7, 8, 9, 10, 11, 12")},
        _split("long days on your feet, the road to work, weekends outdoors, wet mornings"),
    ),
    Family(
        _split("Clothing, Apparel, Tops"),
        {
            "men's t-shirts": (9, 45),
            "women's blouses": (15, 70),
            "hooded sweatshirts": (20, 85),
            "flannel shirts": (18, 75),
        },
        _split("machine washable, slim fit, wrinkle resistant, moisture wicking, hand sewn, preshrunk, stretchy"),
        _split("long sleeves, crew neck, button closure, chest pocket, ribbed cuffs, organic cotton"),
        {"color": _COLORS, "size": _SIZES},
        _split("the office, school days, layering in winter, relaxed weekends"),
    ),
    Family(
        _split("Clothing, Apparel, Bottoms"),
        {"yoga leggings": (14, 65), "cargo shorts": (16, 60), "denim jeans": (25, 110)},
        _split("high waisted, machine washable, straight leg, squat proof, fade resistant, tummy control, loose fit"),
        _split("elastic waistband, drawstring closure, deep pockets, zipper fly, polyester spandex"),
        {"color": _COLORS, "size": _SIZES},
        _split("the gym, long flights, gardening, an evening out"),
    ),
    Family(
        _split("Beauty & Personal Care, Skin Care, Creams"),
        {"face moisturizers": (8, 60), "sunscreen lotions": (9, 45), "body scrubs": (7, 35), "hand creams": (5, 28)},
        _split("cruelty free, paraben free, dermatologist tested, oil free, anti aging, alcohol free, travel size"),
        _split("hyaluronic acid, tea tree, shea butter, green clay, coconut extract, zinc oxide"),
        {"scent": _split("unscented, vanilla, rosewater, citrus, eucalyptus, jasmine, almond"), "pack": _PACKS},
        _split("sensitive skin, dry winters, a calm evening, every day"),
    ),
    Family(
        _split("Beauty & Personal Care, Hair Care, Treatments"),
        {"repair shampoos": (7, 42), "hair masks": (8, 48), "beard oils": (6, 38)},
        _split("sulfate free, color safe, fragrance free, plant based, deep conditioning, cruelty free, leave in"),
        _split("argan oil, biotin complex, keratin protein, aloe vera, seed oils"),
        {"scent": _split("cedar, vanilla, lemongrass, coconut, peppermint, unscented"), "pack": _PACKS},
        _split("curly hair, damaged ends, a quick shower, barbers and stylists"),
    ),
    Family(
        _split("Grocery & Gourmet Food, Snacks & Sweets, Packaged Snacks"),
        {"granola bars": (6, 38), "potato chips": (4, 30), "trail mixes": (8, 45), "protein cookies": (9, 50)},
        _split("gluten free, low sodium, nut free, kosher, keto friendly, non gmo, fat free, individually wrapped"),
        _split("whole grains, dried fruit, chia seeds, sea salt, real cocoa, plant protein"),
        {
            "flavor": _split("honey, barbecue, chocolate, maple, jalapeno, cinnamon, apple, original"),
            "pack": _PACKS,
        },
        _split("lunch at school, long drives, the office drawer, hungry hikers"),
    ),
    Family(
        _split("Grocery & Gourmet Food, Beverages, Hot Drinks"),
        {"loose teas": (6, 40), "ground coffees": (8, 45), "cocoa powders": (5, 32)},
        _split("fair trade, caffeine free, sugar free, slow roasted, usda organic, shade grown, dairy free"),
        _split("resealable bag, artificial colors removed, natural sweetener, single origin, antioxidants"),
        {"flavor": _split("vanilla, hazelnut, ginger, peach, caramel, lemon, original"), "pack": _PACKS},
        _split("slow mornings, afternoon breaks, guests, cold evenings"),
    ),
    Family(
        _split("Electronics, Audio, Portable Audio"),
        {"bluetooth speakers": (18, 160), "over ear headphones": (25, 240), "sport earbuds": (15, 150)},
        _split("noise cancelling, water proof, fast charging, hands free, foldable, high resolution, ultra light"),
        _split("stereo sound, carrying case, voice assistant, usb port, replaceable battery, touch control"),
        {"color": _COLORS, "style": _split("standard, pro, travel bundle, gaming")},
        _split("the commute, a kitchen party, deep work, the running track"),
    ),
    Family(
        _split("Electronics, Accessories, Storage & Power"),
        {"usb flash drives": (6, 60), "power banks": (14, 90), "memory cards": (7, 85)},
        _split("high speed, shock proof, plug and play, password protected, dual port, heat resistant, compact"),
        _split("aluminum alloy, led indicator, key ring, type c connector, lifetime warranty"),
        {"capacity": _split("32 gb, 64 gb, 128 gb, 512 gb"), "color": _COLORS},
        _split("travel photographers, students, backups at home, a full day away"),
    ),
    Family(
        _split("Home & Kitchen, Bedding, Linens"),
        {"duvet covers": (24, 130), "throw blankets": (14, 80), "quilted pillows": (16, 95)},
        _split("machine washable, super soft, hypoallergenic, fade resistant, cooling, double sided, pet friendly"),
        _split("zipper closure, corner ties, egyptian cotton, down filling, geometric pattern"),
        {"color": _COLORS, "size": _split("twin, full, queen, king")},
        _split("guest rooms, cold nights, a calm bedroom, reading in bed"),
    ),
    Family(
        _split("Home & Kitchen, Furniture, Seating & Tables"),
        {"accent chairs": (70, 380), "coffee tables": (60, 340), "bar stools": (45, 260), "storage benches": (55, 290)},
        _split("mid century, easy assemble, space saving, heavy duty, height adjustable, stain resistant, modern"),
        _split("solid wood, metal legs, faux leather, tufted upholstery, tempered glass, hidden drawer"),
        {"color": _COLORS, "style": _split("single piece, set, corner piece")},
        _split("the living room, small apartments, the breakfast corner, a home office"),
    ),
    Family(
        _split("Home & Kitchen, Decor, Light & Textiles"),
        {"table lamps": (18, 120), "area rugs": (30, 240), "window curtains": (15, 90)},
        _split("hand woven, energy efficient, easy clean, eco friendly, child safe, dust proof, farmhouse"),
        _split("bronze finish, linen texture, floral print, remote control, anti skid backing"),
        {"color": _COLORS, "size": _SIZES},
        _split("dining rooms, nurseries, a dark hallway, rented homes"),
    ),
]
OPTION_PHRASES = {
    "color": "in {}",
    "size": "size {}",
    "scent": "{} scent",
    "pack": "sold as {}",
    "flavor": "{} flavor",
    "style": "{} style",
    "capacity": "{} capacity",
}
BRANDS = _split(
    "Aldermoor, Bexley, Calloway, Dunmere, Elvaro, Fennick, Galdor, Harwyn, Ivarsen, Jarrow, Kestrelle, Lomani, "
    "Marlowe, Nordvik, Oakhurst, Pellion, Quillon, Ravenna, Solmar, Tavira, Umbriel, Valdane, Westerly, Yarrow, "
    "Zephira, Ashcombe, Brightwell, Corvane, Delphine, Esterel, Farrow, Glenholt, Hollis, Isolde, Juniper, "
    "Kirkwall, Lindale, Xandor"
)
SERIES = _split(
    "Atlas, Beacon, Cascade, Drift, Ember, Fjord, Glade, Harbor, Isle, Journey, Keystone, Lumen, Meridian, Nimbus, "
    "Orbit, Prairie, Quest, Ridge, Summit, Tundra, Union, Vista, Willow, Apex, Breeze, Compass, Delta, Echo, Frontier, "
    "Grove, Haven, Indigo, Jubilee, Karma, Legend, Mosaic"
)
OPENINGS = [
    "find me {}",
    "i am looking for {}",
    "i need {}",
    "i want to buy {}",
    "please help me find {}",
    "show me {}",
    "can you get me {}",
]
DESCRIPTIONS = [
    "{brand} makes these {kind} for {use} and for {other}.",
    "A favorite for {use}: {kind} from the {series} line by {brand}. Also good for {other}.",
    "Whether it is {use} or {other}, the {series} {kind} do their job.",
    "{brand} has been asked for {kind} that suit {use}. Here they are, and they suit {other} as well.",
]
PRAISES = [
    "tested by our own staff",
    "what customers ask for most",
    "no compromise here",
    "you will notice it from the first day",
    "checked before it leaves our house",
    "better than in last year's model",
]
REVIEWS = [
    "Just what was pictured, and it came a day early.",
    "Good value. My sister has ordered one, too.",
    "The box was dented, but the content was fine.",
    "Not bad for the price, though I have seen nicer ones.",
    "Second time I buy this and I would do it again.",
    "It took me a while to get used to it.",
]
