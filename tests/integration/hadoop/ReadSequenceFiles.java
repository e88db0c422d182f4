package org.apache.hadoop.io.compress;

import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.SequenceFile;
import org.apache.hadoop.io.Writable;

/**
 * Reads SequenceFiles with Hadoop's own reader: `java ReadSequenceFiles.java FILE…`. Beside each file it writes
 * FILE.dump: a line of the codec's class and the header's metadata, then a line for each record: the key (the number of
 * a LongWritable, the bytes of a BytesWritable in hex), a space, the value's bytes in hex.
 */
class ReadSequenceFiles {
    public static void main(String[] files) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setClassLoader(ReadSequenceFiles.class.getClassLoader());
        for (String file : files) {
            dump(configuration, file);
        }
    }

    private static void dump(Configuration configuration, String file) throws Exception {
        HexFormat hex = HexFormat.of();
        Path path = new Path("file://" + Paths.get(file).toAbsolutePath());
        try (SequenceFile.Reader reader = new SequenceFile.Reader(configuration, SequenceFile.Reader.file(path));
                PrintWriter out = new PrintWriter(
                        Files.newBufferedWriter(Paths.get(file + ".dump"), StandardCharsets.UTF_8))) {
            CompressionCodec codec = reader.getCompressionCodec();
            out.println((codec == null ? "none" : codec.getClass().getSimpleName()) + " " + reader.getCompressionType()
                    + " " + reader.getMetadata().getMetadata());
            Writable key = (Writable) reader.getKeyClass().getDeclaredConstructor().newInstance();
            BytesWritable value = new BytesWritable();
            while (reader.next(key, value)) {
                String shown = key instanceof LongWritable
                        ? Long.toString(((LongWritable) key).get())
                        : hex.formatHex(((BytesWritable) key).copyBytes());
                out.println(shown + " " + hex.formatHex(value.copyBytes()));
            }
        }
    }
}

/**
 * In place of Hadoop's class of this name, which needs Hadoop's native library: the same contract (plain zstd frames),
 * decompressed by zstd-jni, which Spark brings along. The container is still read by Hadoop.
 */
class ZStandardCodec implements CompressionCodec {
    @Override
    public CompressionInputStream createInputStream(InputStream in) throws IOException {
        return new Frames(in);
    }

    @Override
    public CompressionInputStream createInputStream(InputStream in, Decompressor decompressor) throws IOException {
        return new Frames(in);
    }

    @Override
    public Class<? extends Decompressor> getDecompressorType() {
        return null;
    }

    @Override
    public Decompressor createDecompressor() {
        return null;
    }

    @Override
    public CompressionOutputStream createOutputStream(java.io.OutputStream out) {
        throw new UnsupportedOperationException();
    }

    @Override
    public CompressionOutputStream createOutputStream(java.io.OutputStream out, Compressor compressor) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Class<? extends Compressor> getCompressorType() {
        return null;
    }

    @Override
    public Compressor createCompressor() {
        return null;
    }

    @Override
    public String getDefaultExtension() {
        return ".zst";
    }

    private static class Frames extends CompressionInputStream {
        private InputStream frames;

        Frames(InputStream in) throws IOException {
            super(in);
        }

        private InputStream frames() throws IOException {
            if (frames == null) {
                frames = new ZstdInputStreamNoFinalizer(in);
            }
            return frames;
        }

        @Override
        public int read(byte[] target, int offset, int length) throws IOException {
            return frames().read(target, offset, length);
        }

        @Override
        public int read() throws IOException {
            return frames().read();
        }

        @Override
        public void resetState() {
            frames = null;
        }
    }
}
