/** How much more a ratio is than 1, with its sign. */
export function moreText(ratio: number): string {
  const percent = 100 * (ratio - 1);
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(percent > -1 && percent < 1 ? 1 : 0)} %`;
}
