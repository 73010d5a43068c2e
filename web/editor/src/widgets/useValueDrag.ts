/**
 * Copies a value to another field by dragging its row with Alt held. Alt leaves drags of labels and
 * fields as they are.
 */
import { type MouseEvent, type PointerEvent, useRef } from "react";
import { canCarry, carry, fieldAt } from "../commands/fields";
import type { FieldName } from "../state/canvas";

const TARGET = "receives";

export function useCarrying(from: FieldName) {
  const target = useRef<HTMLElement | null>(null);
  const begun = useRef(false);
  const mark = (row: HTMLElement | null) => {
    target.current?.classList.remove(TARGET);
    target.current = row;
    row?.classList.add(TARGET);
  };
  return {
    onPointerDownCapture: (event: PointerEvent) => {
      if (event.button !== 0 || !event.altKey) return;
      event.stopPropagation();
      event.currentTarget.setPointerCapture(event.pointerId);
      begun.current = true;
    },
    onMouseDownCapture: (event: MouseEvent) => {
      if (event.button === 0 && event.altKey) event.preventDefault(); // neither focus nor select
    },
    onPointerMove: (event: PointerEvent) => {
      if (!begun.current) return;
      const below = document.elementFromPoint(event.clientX, event.clientY);
      const row = below?.closest<HTMLElement>("[data-widget]:not(.linked)") ?? null;
      const to = fieldAt(row);
      mark(to !== null && canCarry(from, to) ? row : null);
    },
    onPointerUp: () => {
      const to = fieldAt(target.current);
      begun.current = false;
      mark(null);
      if (to !== null) carry(from, to);
    },
    onPointerCancel: () => {
      begun.current = false;
      mark(null);
    },
  };
}
