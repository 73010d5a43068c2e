/** Searches node types by words, similar spelling, use, category or pack. */
import Fuse, { type Expression } from "fuse.js";
import { type Catalog, type NodeType, offered } from "./catalog";

const NAMES = ["title", "name", "aliases"];

const MIN_EXACT_MATCHES = 10; // with this many exact matches, similar ones are not searched

const INDICES = new WeakMap<Catalog, Fuse<NodeType>>();

/**
 * Returns the types that match every word first. If these are few, similar spellings follow. Equal
 * matches are ordered by frequent and recent use.
 */
export function searched(
  catalog: Catalog,
  query: string,
  used: readonly string[] = [],
): readonly NodeType[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const uses = usesOf(used);
  const found = [...catalog.values()].flatMap((type) => {
    const rank = rankOf(type, words);
    return rank === null ? [] : [{ type, rank, uses: uses.get(type.name) ?? 0 }];
  });
  const exact = found
    .sort(
      (one, other) =>
        one.rank - other.rank ||
        other.uses - one.uses ||
        one.type.title.localeCompare(other.type.title),
    )
    .map(({ type }) => type);
  if (words.length === 0 || exact.length >= MIN_EXACT_MATCHES) return exact;
  const known = new Set(exact);
  return [...exact, ...nearly(catalog, words).filter((type) => !known.has(type))];
}

/**
 * Ranks the match: 0 for a whole title or name, 1 for its beginning, 2 for words in names or
 * aliases, 3 in other text; null if a word is missing.
 */
function rankOf(type: NodeType, words: readonly string[]): number | null {
  const called = [type.title, type.name].map((name) => name.toLowerCase());
  const names = [...called, ...type.aliases].join(" ").toLowerCase();
  const texts = `${names} ${type.category} ${type.description}`.toLowerCase();
  if (!words.every((word) => texts.includes(word))) return null;
  if (called.includes(words.join(" "))) return 0;
  if (called.some((name) => name.startsWith(words[0] ?? ""))) return 1;
  return words.every((word) => names.includes(word)) ? 2 : 3;
}

/** Returns the types with names similar to each word. */
function nearly(catalog: Catalog, words: readonly string[]): readonly NodeType[] {
  const asked: Expression = {
    $and: words.map((word) => ({ $or: NAMES.map((key) => ({ [key]: word })) })),
  };
  return indexOf(catalog)
    .search(asked)
    .map(({ item }) => item);
}

function indexOf(catalog: Catalog): Fuse<NodeType> {
  let index = INDICES.get(catalog);
  if (index === undefined) {
    const options = { keys: NAMES, threshold: 0.45, ignoreLocation: true, minMatchCharLength: 2 };
    index = new Fuse([...catalog.values()], options);
    INDICES.set(catalog, index);
  }
  return index;
}

/** Returns how much each type was used; recent uses weigh more. `used` starts with the latest. */
function usesOf(used: readonly string[]): ReadonlyMap<string, number> {
  const found = new Map<string, number>();
  used.forEach((name, place) => found.set(name, (found.get(name) ?? 0) + 1 / (place + 1)));
  return found;
}

/** Returns the used types, the most used first. */
export function recentlyUsed(catalog: Catalog, used: readonly string[]): readonly NodeType[] {
  return [...usesOf(used)]
    .sort(([, one], [, other]) => other - one)
    .flatMap(([name]) => catalog.get(name) ?? []);
}

/** Groups node types by a property, in alphabetical order. */
export function grouped(
  types: readonly NodeType[],
  by: "category" | "pack",
): ReadonlyMap<string, readonly NodeType[]> {
  const found = new Map<string, NodeType[]>();
  for (const type of types) found.set(type[by], [...(found.get(type[by]) ?? []), type]);
  return new Map([...found].sort(([one], [other]) => one.localeCompare(other)));
}

/** Returns the subfolders and node types of a category folder. */
export function inCategory(
  types: readonly NodeType[],
  folder: string,
): { readonly folders: readonly string[]; readonly types: readonly NodeType[] } {
  const start = folder === "" ? "" : `${folder}/`;
  const inside = types.filter(({ category }) => `${category}/`.startsWith(start));
  const deeper = inside.flatMap(({ category }) => {
    const rest = category.slice(start.length);
    return category.length > folder.length && rest !== "" ? [rest.split("/")[0] ?? ""] : [];
  });
  return {
    folders: [...new Set(deeper)].sort(),
    types: inside.filter(({ category }) => category === folder),
  };
}

/** Summarises the inputs and outputs of a type in one line. */
export function socketsOf(type: NodeType): string {
  const given = offered(type)
    .map(({ type: one }) => one)
    .join(", ");
  const made = type.outputs.map(({ type: one }) => one).join(", ");
  return `${given || "nothing"} → ${made || "nothing"}`;
}
