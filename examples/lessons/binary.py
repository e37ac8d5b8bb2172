"""Why not the binary digits of the position?

The lowest digit changes at every position, the next at every second, and so on, like hands of a clock with only two
places. One step may change a single digit or all of them, so neighbouring positions can have very different codes. Sine
and cosine are the same clock with hands that move smoothly: every step is equally long.
"""

from lesson import codes, show

digits, waves = codes("binary", 256), codes("sinusoidal", 256)
rows = [
    (f"{a} → {b}", int((digits[b] - digits[a]).abs().sum()), float((waves[b] - waves[a]).norm()))
    for a, b in ((6, 7), (7, 8), (8, 9), (127, 128))
]
show(("step", "digits that change", "move of the sinusoidal code"), rows)
periods = [next(n for n in range(1, 256) if bool((bit[n:] == bit[:-n]).all())) for bit in digits[:, :7].T]
show(("channel", "positions until its digit repeats"), enumerate(periods))
assert [row[1] for row in rows] == [1, 4, 1, 8]
assert max(row[2] for row in rows) - min(row[2] for row in rows) < 1e-4
assert periods == [2 ** (n + 1) for n in range(7)]
