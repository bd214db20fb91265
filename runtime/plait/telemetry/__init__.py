"""What Plait measures and how it names it: metric definitions in one place, light enough for every room."""
