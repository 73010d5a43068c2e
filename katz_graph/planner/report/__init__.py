"""Shows plans as text, JSON and pictures, and explains them. Must not change a program."""
