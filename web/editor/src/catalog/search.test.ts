import { expect, test } from "vitest";
import { catalogOf } from "./catalog";
import { grouped, inCategory, recentlyUsed, searched, socketsOf } from "./search";

const CATALOG = catalogOf({
  KSampler: { category: "sampling", output: ["LATENT"], input: { required: { model: ["MODEL"] } } },
  KSamplerAdvanced: { display_name: "KSampler (Advanced)", category: "sampling/custom" },
  CLIPTextEncode: { display_name: "CLIP Text Encode", category: "conditioning" },
  Blur: {
    category: "image",
    description: "Softens a picture.",
    search_aliases: ["gaussian"],
    python_module: "custom_nodes.soft",
  },
});
const names = (query: string, used: readonly string[] = []) =>
  searched(CATALOG, query, used).map(({ name }) => name);

test("P0.02 search matches words: titles first, then aliases and descriptions", () => {
  expect(names("sampl")[0]).toBe("KSampler");
  expect(names("ks sampling")).toEqual(["KSampler", "KSamplerAdvanced"]);
  expect(names("gaussian")).toEqual(["Blur"]);
  expect(names("softens")).toEqual(["Blur"]);
  expect(names("nothing")).toEqual([]);
});

test("P0.02 search lists similar spellings after exact matches", () => {
  expect(names("ksmpler")).toContain("KSampler");
  expect(names("clp encdoe")[0]).toBe("CLIPTextEncode");
  expect(names("text")[0]).toBe("CLIPTextEncode");
});

test("P0.02 equal matches are ordered by recent and frequent use", () => {
  expect(names("ks", ["Blur", "KSamplerAdvanced"])[0]).toBe("KSamplerAdvanced");
  const used = ["Blur", "KSampler", "KSampler", "KSampler", "Gone"];
  expect(recentlyUsed(CATALOG, used).map(({ name }) => name)).toEqual(["KSampler", "Blur"]);
});

test("P0.02 P0.03 categories are a tree, packs are a list", () => {
  const all = searched(CATALOG, "");
  const root = inCategory(all, "");
  expect(root.folders.filter((name) => name !== "editor")).toEqual([
    "conditioning",
    "image",
    "sampling",
  ]);
  expect(root.types).toEqual([]);
  const sampling = inCategory(all, "sampling");
  expect(sampling.folders).toEqual(["custom"]);
  expect(sampling.types.map(({ name }) => name)).toEqual(["KSampler"]);
  expect(
    grouped(all, "pack")
      .get("soft")
      ?.map(({ name }) => name),
  ).toEqual(["Blur"]);
});

test("P0.02 a complete type name ranks first, whatever its title and recent use", () => {
  const catalog = catalogOf({
    CLIPTextEncodeFlux: {},
    CLIPTextEncode: { display_name: "CLIP Text Encode (Prompt)" },
    CLIPTextEncodeSD3: {},
  });
  const found = searched(catalog, "cliptextencode", ["CLIPTextEncodeSD3"]);
  expect(found.map(({ name }) => name)).toEqual([
    "CLIPTextEncode",
    "CLIPTextEncodeSD3",
    "CLIPTextEncodeFlux",
  ]);
});

test("P0.02 an entry lists its inputs and outputs", () => {
  const [sampler] = searched(CATALOG, "ksampler");
  expect(sampler && socketsOf(sampler)).toBe("MODEL → LATENT");
});

test("P0.02 search finds one of 2,000 types by its exact or misspelled name", () => {
  const many = catalogOf(
    Object.fromEntries(
      Array.from({ length: 2000 }, (_, number) => [
        `Type${number}`,
        { category: `c${number % 40}` },
      ]),
    ),
  );
  expect(searched(many, "type1999")[0]?.name).toBe("Type1999");
  expect(searched(many, "tpye1999")[0]?.name).toBe("Type1999");
});
