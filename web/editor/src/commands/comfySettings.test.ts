import { expect, test } from "vitest";
import { readComfy } from "./comfySettings";

const combo = (key: string, more = {}) => ({ key, ...more });

test("P1.27 keys, favourites, theme and colours are read; unknown commands are listed", () => {
  expect(
    readComfy({
      "Comfy.Keybinding.NewBindings": [
        { commandId: "Comfy.QueuePrompt", combo: combo("r", { ctrl: true, shift: true }) },
        { commandId: "Comfy.Canvas.FitView", combo: combo("Home", { alt: true }) },
        { commandId: "Comfy.Canvas.FitView", combo: combo("") },
        { commandId: "SomePack.Command", combo: combo("x") },
        "nonsense",
      ],
      "Comfy.Keybinding.UnsetBindings": [
        { commandId: "Comfy.Undo", combo: combo("z", { ctrl: true }) },
      ],
      "Comfy.NodeLibrary.Bookmarks.V2": ["sampling/KSampler", "mine/", "VAEDecode"],
      "Comfy.ColorPalette": "custom_sea",
      "Comfy.CustomColorPalettes": {
        sea: {
          light_theme: true,
          colors: { comfy_base: { "bg-color": "#CCE", "fg-color": "url(x)" } },
        },
      },
      "Comfy.TextareaWidget.FontSize": 14,
    }),
  ).toEqual({
    keys: [
      { action: "undo", key: "Mod+z", on: false },
      { action: "run", key: "Mod+Shift+R", on: true },
      { action: "fit", key: "Alt+Home", on: true },
    ],
    favourites: ["KSampler", "VAEDecode"],
    theme: "light",
    colours: { "light-back": "#ccccee" },
    text: 14,
    unknown: ["SomePack.Command"],
  });
  expect(readComfy({})).toEqual({
    keys: [],
    favourites: [],
    theme: null,
    colours: {},
    text: null,
    unknown: [],
  });
});
