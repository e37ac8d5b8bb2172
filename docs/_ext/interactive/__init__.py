"""One static page that shows schemes at work: numbers follow sliders for base, factor, width, position and distance."""
