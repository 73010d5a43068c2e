import type { Widget } from "../catalog/catalog";
import type { Json } from "../json";

/** The properties of every kind of field. */
export interface Field {
  readonly widget: Widget;
  readonly value: Json;
  readonly label: string;
  /** The tooltip and the accepted values. */
  readonly help: string;
  /** Sets the value. Changes of one gesture form one undo step. */
  readonly set: (value: Json, gesture?: string) => void;
}
