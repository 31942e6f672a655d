// The contrast of two colours, as `rgb(…)` of the browser writes them (WCAG 2.2).

export function contrast(...colors) {
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\d.]+/g).map((value) => (value / 255 <= 0.03928 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [dark, light] = colors.map(luminance).sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}
