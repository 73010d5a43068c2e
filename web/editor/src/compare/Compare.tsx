/**
 * Compares two images: with a slider, by their difference, and by the settings of their workflows.
 */
import { useEffect, useRef, useState } from "react";
import { fetched, open } from "../server/client";
import { useLive } from "../state/live";
import { usePage } from "../state/page";
import { Modal } from "../ui/Modal";
import { difference, differenceText, type Pixels } from "./difference";
import { comparedSettings, type Setting } from "./settings";
import "./compare.css";

/** The factor by which differences are amplified. */
const GAIN = 8;

type Pair = readonly [string, string];

export function Compare({ pair }: { readonly pair: Pair }) {
  const [shows, setShows] = useState<"slider" | "difference">("slider");
  const [one, other] = pair.map(nameOf);
  return (
    <Modal label="Compare" onClose={() => usePage.setState({ compared: null })}>
      <p className="steering">
        {(["slider", "difference"] as const).map((way) => (
          <button
            type="button"
            key={way}
            aria-pressed={shows === way}
            onClick={() => setShows(way)}
          >
            {way}
          </button>
        ))}
        <span>
          left {one}, right {other}
        </span>
      </p>
      {shows === "slider" ? <Slider pair={pair} /> : <Difference pair={pair} />}
      <Settings pair={pair} />
    </Modal>
  );
}

function nameOf(address: string): string {
  return new URL(address, document.baseURI).searchParams.get("filename") ?? "";
}

function Slider({ pair: [one, other] }: { readonly pair: Pair }) {
  const [at, setAt] = useState(50);
  return (
    <div className="compared">
      <div
        className="behind"
        onPointerMove={({ currentTarget, clientX }) => {
          const { left, width } = currentTarget.getBoundingClientRect();
          setAt(Math.max(0, Math.min(100, (100 * (clientX - left)) / width)));
        }}
      >
        <img src={one} alt={`left: ${nameOf(one)}`} />
        <img
          src={other}
          alt={`right: ${nameOf(other)}`}
          style={{ clipPath: `inset(0 0 0 ${at}%)` }}
        />
        <i style={{ left: `${at}%` }} />
      </div>
      <input
        type="range"
        aria-label="where the right picture begins, in percent"
        value={Math.round(at)}
        onChange={(event) => setAt(Number(event.target.value))}
      />
    </div>
  );
}

function Difference({ pair: [one, other] }: { readonly pair: Pair }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [words, setWords] = useState("comparing …");
  useEffect(() => {
    let left = false;
    Promise.all([pixelsOf(one), pixelsOf(other)]).then(
      ([first, second]) => {
        const found = difference(first, second, GAIN);
        const drawn = canvas.current;
        if (left || drawn === null) return;
        if (found === null)
          return setWords(
            `different sizes: ${first.width} × ${first.height}, ${second.width} × ${second.height}`,
          );
        [drawn.width, drawn.height] = [first.width, first.height];
        drawn.getContext("2d")?.putImageData(new ImageData(found.pixels, first.width), 0, 0);
        setWords(`${differenceText(found)}; shown ${GAIN} times as strong`);
      },
      () => setWords("one of the pictures no longer exists"),
    );
    return () => {
      left = true;
    };
  }, [one, other]);
  return (
    <figure className="compared">
      <canvas ref={canvas} role="img" aria-label="difference" width={0} height={0} />
      <figcaption aria-live="polite">{words}</figcaption>
    </figure>
  );
}

async function pixelsOf(address: string): Promise<Pixels> {
  const picture = new Image();
  picture.src = address;
  await picture.decode();
  const { naturalWidth: width, naturalHeight: height } = picture;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  if (context === null) throw new Error("no canvas");
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, width, height);
}

function Settings({ pair: [one, other] }: { readonly pair: Pair }) {
  const catalog = useLive((live) => live.catalog);
  const [rows, setRows] = useState<readonly Setting[] | string>("reading the workflows …");
  useEffect(() => {
    let left = false;
    const read = async (address: string) => (await open(await fetched(address))).document;
    Promise.all([read(one), read(other)])
      .then(
        ([first, second]) => comparedSettings(first, second, catalog),
        (error: unknown) => (error instanceof Error ? error.message : String(error)),
      )
      .then((found) => left || setRows(found));
    return () => {
      left = true;
    };
  }, [one, other, catalog]);
  if (typeof rows === "string") return <p className="empty">{rows}</p>;
  const differing = rows.filter((row) => row.one !== row.other);
  return (
    <>
      <Table
        caption={differing.length === 0 ? "all settings are equal" : "settings that differ"}
        rows={differing}
      />
      <details>
        <summary>equal settings: {rows.length - differing.length}</summary>
        <Table caption="" rows={rows.slice(differing.length)} />
      </details>
    </>
  );
}

function Table({ caption, rows }: { readonly caption: string; readonly rows: readonly Setting[] }) {
  return (
    <table className="settings">
      {caption !== "" && <caption>{caption}</caption>}
      <tbody>
        {rows.map(({ node, name, one, other }) => (
          <tr key={`${node} ${name}`}>
            <th scope="row">
              {node} <small>{name.replaceAll("_", " ")}</small>
            </th>
            <td>{one ?? "–"}</td>
            <td>{other ?? "–"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
