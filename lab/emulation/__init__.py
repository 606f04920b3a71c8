"""How fast the emulator is: two source trees, case by case."""
