/**
 * Paints a mask over an image with brush, eraser and fill, with undo. The image's file is not
 * changed.
 */
import { type PointerEvent, useCallback, useEffect, useRef, useState } from "react";
import { setValue } from "../document/commands";
import { addressOf, loadedPicture, uploadMask } from "../server/client";
import { useDocuments } from "../state/documents";
import { refreshCatalog, notify } from "../state/live";
import { type Masking, usePage } from "../state/page";
import { Modal } from "../ui/Modal";
import {
  alphaPixels,
  type Box,
  drawPiece,
  emptyMask,
  fillFrom,
  inverted,
  type Mask,
  maskOf,
} from "./mask";
import "./mask.css";

const TOOLS = { brush: "Brush", eraser: "Eraser", fill: "Fill" } as const;
type Tool = keyof typeof TOOLS;
/** The colour of the mask, visible on light and dark images. */
const COLOUR = [235, 64, 52] as const;
const OPACITY = 0.62;
const MAX_BRUSH_SIZE = 400;
const FACTOR = 1.25;
const close = () => usePage.setState({ masking: null });

async function pixelsOf(address: string): Promise<ImageData> {
  const response = await fetch(address);
  if (!response.ok) throw new Error("the picture no longer exists");
  const picture = await createImageBitmap(await response.blob());
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("the browser cannot create a canvas");
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, picture.width, picture.height);
}

function show(canvas: HTMLCanvasElement, mask: Mask, box: Box): void {
  if (box.width === 0 || box.height === 0) return;
  const pixels = new ImageData(box.width, box.height);
  for (let y = 0; y < box.height; y++)
    for (let x = 0; x < box.width; x++) {
      const value = mask.values[(box.y + y) * mask.width + box.x + x] ?? 0;
      pixels.data.set([...COLOUR, OPACITY * value], 4 * (y * box.width + x));
    }
  canvas.getContext("2d")?.putImageData(pixels, box.x, box.y);
}

export function MaskEditor({ masking }: { readonly masking: Masking }) {
  const picture = loadedPicture(masking.value);
  const canvas = useRef<HTMLCanvasElement>(null);
  const mask = useRef<Mask>(emptyMask(1, 1));
  const last = useRef<{ x: number; y: number } | null>(null);
  const [past, setPast] = useState<readonly Mask[]>([]);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [tool, setTool] = useState<Tool>("brush");
  const [radius, setRadius] = useState(12);
  const [hardness, setHardness] = useState(0.8);
  const [opacity, setOpacity] = useState(1);
  const [zoom, setZoom] = useState(1);

  const redraw = useCallback(() => {
    const { width, height } = mask.current;
    if (canvas.current !== null) show(canvas.current, mask.current, { x: 0, y: 0, width, height });
  }, []);

  useEffect(() => {
    let gone = false;
    pixelsOf(addressOf(loadedPicture(masking.value))).then(
      ({ data, width, height }) => {
        if (gone) return;
        mask.current = maskOf(data, width, height);
        setSize({ width, height });
        const easel = canvas.current?.closest(".easel");
        const fit = (room = 0, of = 1) => Math.max(1, room - 8) / of;
        setZoom(Math.min(8, fit(easel?.clientWidth, width), fit(easel?.clientHeight, height)));
      },
      (error) => {
        close();
        notify(error);
      },
    );
    return () => {
      gone = true;
    };
  }, [masking.value]);
  useEffect(redraw, [size, redraw]);

  const remember = () => {
    const { values, ...box } = mask.current;
    setPast((before) => [...before.slice(-49), { ...box, values: values.slice() }]);
  };
  const become = (next: Mask) => {
    remember();
    mask.current = next;
    redraw();
  };
  const undo = () => {
    const before = past.at(-1);
    if (before === undefined) return;
    mask.current = before;
    setPast(past.slice(0, -1));
    redraw();
  };
  const resize = (factor: number) =>
    setRadius((now) =>
      Math.min(MAX_BRUSH_SIZE, Math.max(1, Math.round(now * factor + factor - 1))),
    );

  const placeOf = (event: PointerEvent) => {
    const box = event.currentTarget.getBoundingClientRect();
    return { x: (event.clientX - box.left) / zoom, y: (event.clientY - box.top) / zoom };
  };
  const draw = (to: { x: number; y: number }) => {
    const brush = { radius, hardness, opacity, erases: tool === "eraser" };
    const box = drawPiece(mask.current, last.current ?? to, to, brush);
    last.current = to;
    if (canvas.current !== null) show(canvas.current, mask.current, box);
  };
  const onPointerDown = (event: PointerEvent) => {
    if (event.button !== 0) return; // other buttons pan
    event.currentTarget.setPointerCapture(event.pointerId);
    remember();
    if (tool !== "fill") return draw(placeOf(event));
    fillFrom(mask.current, placeOf(event));
    redraw();
  };

  const save = async () => {
    const { width, height } = mask.current;
    const drawn = new OffscreenCanvas(width, height);
    drawn.getContext("2d")?.putImageData(new ImageData(alphaPixels(mask.current), width), 0, 0);
    try {
      const name = await uploadMask(await drawn.convertToBlob({ type: "image/png" }), picture);
      await refreshCatalog();
      const { key } = masking;
      useDocuments
        .getState()
        .change(masking.session, "paint a mask", (graph) =>
          setValue(graph, masking.node, key, name, masking.widget),
        );
      close();
    } catch (error) {
      notify(error);
    }
  };

  return (
    <Modal label={`Mask of ${picture.filename}`} onClose={close}>
      <div
        className="mask"
        onKeyDown={(event) => {
          const acts: Readonly<Record<string, () => void>> = {
            "[": () => resize(1 / 1.2),
            "]": () => resize(1.2),
            b: () => setTool("brush"),
            e: () => setTool("eraser"),
            f: () => setTool("fill"),
            "+": () => setZoom(zoom * FACTOR),
            "-": () => setZoom(zoom / FACTOR),
          };
          const undoing = event.key === "z" && (event.ctrlKey || event.metaKey);
          const act = undoing ? undo : acts[event.key];
          if (act === undefined) return;
          event.preventDefault();
          act();
        }}
      >
        <div className="steering" role="toolbar" aria-label="tools">
          {(Object.keys(TOOLS) as Tool[]).map((one) => (
            <button
              type="button"
              key={one}
              aria-pressed={tool === one}
              onClick={() => setTool(one)}
            >
              {TOOLS[one]}
            </button>
          ))}
          <Slider name="size" most={MAX_BRUSH_SIZE} value={radius} set={setRadius} />
          <Slider name="hardness" most={1} value={hardness} set={setHardness} />
          <Slider name="opacity" most={1} value={opacity} set={setOpacity} />
          <button type="button" aria-label="zoom out" onClick={() => setZoom(zoom / FACTOR)}>
            −
          </button>
          <button type="button" aria-label="zoom in" onClick={() => setZoom(zoom * FACTOR)}>
            +
          </button>
          <button type="button" onClick={() => become(inverted(mask.current))}>
            Invert
          </button>
          <button type="button" onClick={() => become(emptyMask(size.width, size.height))}>
            Clear
          </button>
          <button type="button" disabled={past.length === 0} onClick={undo}>
            Undo
          </button>
        </div>
        <div
          className="easel"
          tabIndex={0}
          role="group"
          aria-label="picture: [ and ] change the size of the brush, + and − zoom"
          onPointerMove={({ buttons, movementX, movementY, currentTarget }) => {
            if (buttons === 4) currentTarget.scrollBy(-movementX, -movementY);
          }}
        >
          <div style={{ width: size.width * zoom, height: size.height * zoom }}>
            <img src={`${addressOf(picture)}&channel=rgb`} alt="" draggable={false} />
            <canvas
              ref={canvas}
              width={size.width}
              height={size.height}
              onPointerDown={onPointerDown}
              onPointerMove={(event) => last.current !== null && draw(placeOf(event))}
              onPointerUp={() => {
                last.current = null;
              }}
            />
          </div>
        </div>
        <p className="steering">
          <span>Red areas are repainted. The image file is not changed.</span>
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="button" className="prominent" onClick={() => void save()}>
            Use this mask
          </button>
        </p>
      </div>
    </Modal>
  );
}

function Slider({
  name,
  most,
  value,
  set,
}: {
  readonly name: string;
  readonly most: number;
  readonly value: number;
  readonly set: (value: number) => void;
}) {
  return (
    <label>
      {name}
      <input
        type="range"
        min={most > 1 ? 1 : 0}
        max={most}
        step={most > 1 ? 1 : 0.05}
        value={value}
        onChange={(event) => set(Number(event.target.value))}
      />
    </label>
  );
}
