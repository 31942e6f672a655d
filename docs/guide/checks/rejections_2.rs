// Included by a program in `docs/guide/rejections.md`.

{
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        // The handler reads no body, either, and a client that sends sixty megabytes sees its answer all the same.
        for status in ["200", "503"] {
            let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
            let length = 60 << 20;
            let head = format!("POST /upload HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
            client.write_all(head.as_bytes()).await.unwrap();
            client.write_all(&vec![b'x'; length]).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
    });
}
