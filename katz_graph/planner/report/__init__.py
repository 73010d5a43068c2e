"""Shows plans: text, JSON, pictures, and why they are so. Must not change a program."""
