import { expect, test } from "vitest";
import { combination } from "./keys";

function pressed(key: string, code: string, held: Partial<KeyboardEvent> = {}): string | null {
  const none = { ctrlKey: false, metaKey: false, altKey: false, shiftKey: false };
  return combination({ ...none, ...held, key, code } as KeyboardEvent);
}

test("keys are named by the characters that they type", () => {
  expect(pressed("s", "KeyS", { ctrlKey: true })).toBe("Mod+s");
  expect(pressed("S", "KeyS", { shiftKey: true })).toBe("Shift+S");
  expect(pressed("?", "Slash", { shiftKey: true })).toBe("?");
  expect(pressed("a", "KeyQ")).toBe("a"); // a French keyboard
  expect(pressed("Control", "ControlLeft", { ctrlKey: true })).toBeNull();
});

test("with another script or a Mac's Option key, keys are named by their Latin letters", () => {
  expect(pressed("ы", "KeyS", { ctrlKey: true })).toBe("Mod+s");
  expect(pressed("Ы", "KeyS", { ctrlKey: true, shiftKey: true })).toBe("Mod+Shift+S");
  expect(pressed("∑", "KeyW", { altKey: true })).toBe("Alt+w");
  expect(pressed("Dead", "KeyE", { altKey: true })).toBe("Alt+e");
});

test("characters with a key of their layout are unchanged", () => {
  expect(pressed("ö", "Semicolon")).toBe("ö");
  expect(pressed("é", "KeyW", { ctrlKey: true })).toBe("Mod+é"); // the BÉPO layout
  expect(pressed("£", "Digit3", { shiftKey: true })).toBe("£");
  expect(pressed("@", "KeyQ", { ctrlKey: true, altKey: true })).toBe("Mod+Alt+@"); // AltGr
});
