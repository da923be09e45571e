#include "k3/cli/bench/quality_text.h"

namespace k3::cli {

const std::string_view kQualityText =
    R"(The harbour lay at the mouth of a small river, and the town had grown up around it without any plan. Its streets
followed the old paths down to the water, so that a stranger who walked uphill was never lost for long: sooner or later he
came out on the square with the church, the school and the house of the doctor, and from there he could see the sea.

In the morning the boats came in. The men called to each other in short words, threw the ropes ashore and lifted the
baskets on to the stones. By eight o'clock the fish had been weighed and sold, and the carts were on their way to the
railway station. Then it was quiet until noon, except for the sound of hammers from the yard where a new boat was being
built. The children knew the yard well. They were not allowed to go near the saw, but nobody minded when they carried away
the long curls of wood that fell from the planes.

A ship's balance depends on two points. The first is the centre of gravity, where all of its weight may be thought to act.
The second is the centre of buoyancy, which is the centre of the water that the hull pushes aside. When the ship leans to
one side, the shape of the part under water changes, and the centre of buoyancy moves towards the lower side. The two
forces, weight downwards and buoyancy upwards, are then no longer on one line, and together they turn the ship back. If the
cargo is stowed too high, however, the centre of gravity lies so far up that the same two forces turn her further over
instead. For this reason heavy goods are put at the bottom, and a ship without cargo takes on water or stones.

"You will never learn it from a book," said the old man, and went on mending his net. "My father could not read, and he
brought home every boat he took out. He looked at the sky, he looked at the water, and he asked himself one question: what
will I do if I am wrong?"

The girl thought about this. "And what did he do when he was wrong?"

"Once he stayed out all night behind the island, with the wind against him, and my mother put a lamp in every window. In
the morning he sailed in as if nothing had happened. He had four fish. He gave one to the priest, one to the doctor and one
to the widow next door, and the fourth we ate ourselves. After that he bought a second anchor."

She laughed, but he did not. He held the net against the light, found the next hole and pulled the thread through it. There
were twelve houses on that side of the harbour in those days, he told her, and in 1907 the water stood in all of them.
Today there are forty, and a wall of stone, and a machine that says a day before what the weather will be. It is right four
times out of five. For the fifth time there is still the second anchor.
)";

}  // namespace k3::cli
