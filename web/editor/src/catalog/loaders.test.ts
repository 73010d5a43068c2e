import { expect, test } from "vitest";
import { catalogOf } from "./catalog";
import { loadersOf, triggersOf } from "./loaders";

const loader = (widget: string, choices: string[], more = {}) => ({
  input: { required: { [widget]: [choices], ...more } },
});
const CATALOG = catalogOf({
  UNETLoader: loader("unet_name", ["flow"]),
  VAELoader: loader("vae_name", ["flow"]),
  LoraLoader: loader("lora_name", ["a", "b"], { model: ["MODEL"], strength: ["FLOAT", {}] }),
  LoraLoaderModelOnly: loader("lora_name", ["a", "b"], { model: ["MODEL"] }),
});

test("P1.18 a model is loaded by the simplest node type of its kind", () => {
  const names = (models: string[], called: string[]) =>
    loadersOf(CATALOG, models, called).map(({ type }) => type.name);
  expect(names(["a", "b"], ["loras"])).toEqual(["LoraLoaderModelOnly", "LoraLoader"]);
  expect(names(["flow"], ["diffusion_models", "unet"])[0]).toBe("UNETLoader");
  expect(names(["flow"], ["vae"])[0]).toBe("VAELoader");
  expect(names(["c"], ["loras"])).toEqual([]);
  expect(names([], ["loras"])).toEqual([]);
});

test("P1.18 triggers are the phrases in the metadata, else the most frequent training tags", () => {
  const tags = '{"one": {"ink ": 3, "paper": 9}, "two": {"ink": 8}}';
  expect(triggersOf({ ss_tag_frequency: tags })).toEqual(["ink", "paper"]);
  expect(triggersOf({ ss_tag_frequency: tags, "modelspec.trigger_phrase": "inked, " })).toEqual([
    "inked",
  ]);
  expect(triggersOf({ ss_tag_frequency: "[not JSON" })).toEqual([]);
  expect(triggersOf({ ss_tag_frequency: "[1]" })).toEqual([]);
});
