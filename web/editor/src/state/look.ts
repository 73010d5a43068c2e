/** Defines the page's appearance: the text size in nodes, and custom colours by variable. */
import { fieldsOf, type Json, type JsonObject, numberFrom, textOf } from "../json";
import { contrastOf, pickedOf } from "../ui/colours";

export const SCHEMES = ["dark", "light"] as const;
export type Scheme = (typeof SCHEMES)[number];

/** The variables of `style.css`, and their uses. */
export const VARIABLES = {
  back: "canvas",
  grid: "canvas grid",
  panel: "nodes and panels",
  raised: "titles and buttons",
  field: "fields",
  edge: "borders",
  text: "texts",
  dim: "secondary text",
  accent: "selection",
  "on-accent": "text on the selection",
  good: "success",
  busy: "running",
  bad: "errors",
  heat: "long run time",
} as const;
export type Variable = keyof typeof VARIABLES;

/** Pairs of foreground and background that need contrast. */
const PAIRS: readonly (readonly [Variable, Variable])[] = [
  ["text", "back"],
  ["text", "panel"],
  ["text", "raised"],
  ["text", "field"],
  ["dim", "panel"],
  ["bad", "panel"],
  ["accent", "panel"],
  ["on-accent", "accent"],
];
/** The minimum contrast of text by WCAG 2, level AA. */
const MIN_CONTRAST = 4.5;

export const TEXT = { least: 9, usual: 12, most: 20 } as const;

/** Colours by variable and scheme, such as `dark-accent`. */
export type Colours = Readonly<Record<string, string>>;

export interface Look {
  /** Pixels at 100 % zoom. */
  readonly text: number;
  readonly colours: Colours;
}

export const DEFAULT_LOOK: Look = { text: TEXT.usual, colours: {} };

const NAMES = SCHEMES.flatMap((scheme) =>
  Object.keys(VARIABLES).map((name) => `${scheme}-${name}`),
);

/** Reads a stored look; invalid colours or sizes are replaced by the defaults. */
export function lookOf(kept: Json): Look {
  const { text, colours } = fieldsOf(kept);
  const size = numberFrom(text, TEXT.usual);
  return {
    text: Math.min(TEXT.most, Math.max(TEXT.least, Math.round(size))),
    colours: coloursOf(fieldsOf(colours)),
  };
}

function coloursOf(given: JsonObject): Colours {
  const known = NAMES.flatMap((name) => {
    const colour = pickedOf(textOf(given[name]));
    return colour === null ? [] : [[name, colour] as const];
  });
  return Object.fromEntries(known);
}

/** Returns the page's custom properties; an empty value removes one. */
export function propertiesOf({ text, colours }: Look): ReadonlyMap<string, string> {
  return new Map([
    ["--node-text", text === TEXT.usual ? "" : `${text}px`],
    ...NAMES.map((name) => [`--${name}`, colours[name] ?? ""] as const),
  ]);
}

/** Prints colours as text that users can exchange: one variable per line. */
export function printed(colours: Colours): string {
  return Object.entries(colours)
    .map(([name, colour]) => `--${name}: ${colour};`)
    .join("\n");
}

/** Parses such a text, and returns the lines that it does not understand. */
export function parsed(text: string): {
  readonly colours: Colours;
  readonly wrong: readonly string[];
} {
  const lines = text.split(/[;\n]/).map((line) => line.trim());
  const read = lines
    .filter((line) => line !== "")
    .map((line) => ({ line, found: /^--([a-z-]+)\s*:\s*(#[0-9a-f]+)$/i.exec(line) }));
  const given = read.flatMap(({ found }) => (found === null ? [] : [[found[1], found[2]]]));
  const colours = coloursOf(Object.fromEntries(given) as JsonObject);
  const wrong = read.flatMap(({ line, found }) =>
    found !== null && colours[found[1] ?? ""] !== undefined ? [] : [line],
  );
  return { colours, wrong };
}

/** Describes pairs with too little contrast. `holds`: returns the colour of a variable. */
export function unreadable(holds: (scheme: Scheme, name: Variable) => string): readonly string[] {
  return SCHEMES.flatMap((scheme) =>
    PAIRS.flatMap(([front, back]) => {
      const contrast = contrastOf(holds(scheme, front), holds(scheme, back));
      if (contrast >= MIN_CONTRAST) return [];
      const pair = `${VARIABLES[front]} (${front}) on ${VARIABLES[back]} (${back})`;
      return [`${scheme}: ${pair}: ${contrast.toFixed(1)} to 1, less than ${MIN_CONTRAST}`];
    }),
  );
}
