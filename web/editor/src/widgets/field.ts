import type { Widget } from "../catalog/catalog";
import type { Json } from "../json";

/** What every kind of field is given. */
export interface Field {
  readonly widget: Widget;
  readonly value: Json;
  readonly label: string;
  /** What its author says of it, and what it takes. */
  readonly help: string;
  /** Steps of one gesture are one step of undo. */
  readonly set: (value: Json, gesture?: string) => void;
}
